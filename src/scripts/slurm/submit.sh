# Submits a process that was created to Slurm, and prints the number of the job. Appended to process/common.sh and slurm/common.sh.
# Variables: run_dir, which (its name or id), options (a line of sh that sets the arguments), name, limit (seconds).
must_find "$which"
eval "$options"
rm -f "$directory/done" "$directory/ended" "$directory/gone" "$directory/job"
# signals that are for the ranks end nothing, and what the node has set in the environment is known (variables.py)
begin="trap '' USR1 USR2 50; (umask 077; env -0 >$directory/begun); exec sh $directory/main $directory"
if [ -n "${SLURM_JOB_ID:-}" ]; then
  # within an allocation: a step on its first node, which outlives this login
  first=$(scontrol show hostnames "${SLURM_JOB_NODELIST:-}" | head -n 1)
  printf '%s\n' "$first" >"$directory/step"
  HVDCTL_TASKS=${SLURM_TASKS_PER_NODE:-}
  export HVDCTL_TASKS
  # what the allocation as a whole has is not for a step of one process (srun.sh)
  for variable in $(env | sed -n 's/^\(SLURM_[A-Z0-9_]*\)=.*/\1/p'); do
    case $variable in SLURM_JOB* | SLURM_CONF | SLURM_CLUSTER_NAME | SLURM_CPU_BIND) ;; *) unset "$variable" ;; esac
  done
  (umask 077 && env -0 >"$directory/submitted")
  # shellcheck disable=SC2016 # the variables of the step
  setsid srun --nodes=1 --ntasks=1 --nodelist="$first" --overlap --mpi=none --job-name="$name.$id" --output="$directory/output" \
    --open-mode=append --chdir="$directory" --export=ALL \
    sh -c 'printf "%s.%s\n" "$SLURM_JOB_ID" "$SLURM_STEP_ID" >"$0/job.new" && mv "$0/job.new" "$0/job" && eval "$1"' "$directory" "$begin" \
    </dev/null >/dev/null 2>"$directory/refused" &
  step=$!
  # it says itself that it has started, and may have ended by then; what failed in it is in its output. A file of another node is seen late
  # on a network file system
  ended='' until=$(($(date +%s) + limit))
  until [ -s "$directory/job" ]; do
    ls "$directory" >/dev/null
    kill -0 "$step" 2>/dev/null || ended=${ended:-$(date +%s)}
    [ -z "$ended" ] || [ "$(date +%s)" -lt "$((ended + 3))" ] || {
      cat "$directory/refused" "$directory/output" >&2 2>/dev/null
      exit 1
    }
    [ "$(date +%s)" -lt "$until" ] || {
      echo "Slurm has not started the step of the job on $first within $limit s: $(cat "$directory/refused")" >&2
      kill "$step" 2>/dev/null
      exit 1
    }
    sleep 0.2
  done
  exit 0
fi
# within another job's allocation, of which the user has unset SLURM_JOB_ID
[ -z "${SLURM_JOB_NODELIST:-}" ] || for variable in $(env | sed -n 's/^\(SLURM_[A-Z0-9_]*\)=.*/\1/p'); do
  case $variable in SLURM_CONF | SLURM_JWT) ;; *) unset "$variable" ;; esac
done
(umask 077 && env -0 >"$directory/submitted")
number=$(sbatch --parsable "$@" --job-name="$name.$id" --output="$directory/output" --open-mode=append --chdir="$directory" \
  --wrap="[ -O $directory ] || exit; $begin") || exit
# of a federation: NUMBER;CLUSTER
number=${number%%;*}
printf '%s\n' "$number" >"$directory/job"
printf '%s\n' "$number"
