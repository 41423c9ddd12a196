# Submits a process that was created to Slurm, and prints the number of the job. Appended to process/common.sh and slurm/common.sh.
# Variables: run_dir, which (its name or id), options (a line of sh that sets the arguments), name.
must_find "$which"
eval "$options"
rm -f "$directory/done" "$directory/ended"
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
  setsid srun --nodes=1 --ntasks=1 --nodelist="$first" --overlap --mpi=none --job-name="$name.$id" --output="$directory/output" \
    --open-mode=append --chdir="$directory" --export=ALL sh -c "trap '' USR1 USR2; exec sh $directory/main $directory" </dev/null >/dev/null 2>"$directory/refused" &
  step=$!
  tries=0
  while all=$(queue) || exit; do
    find_job "$id" "$all"
    [ -z "$line" ] || break
    kill -0 "$step" 2>/dev/null || [ -e "$directory/done" ] || {
      cat "$directory/refused" >&2
      exit 1
    }
    tries=$((tries + 1))
    [ "$tries" -lt 150 ] || {
      echo "Slurm has not started the step of the job on $first within 30 s: $(cat "$directory/refused")" >&2
      kill "$step" 2>/dev/null
      exit 1
    }
    sleep 0.2
  done
  printf '%s\n' "${number:-$SLURM_JOB_ID.0}" >"$directory/job"
  exit 0
fi
number=$(sbatch --parsable "$@" --job-name="$name.$id" --output="$directory/output" --open-mode=append --chdir="$directory" \
  --wrap="trap '' USR1 USR2 50; [ -O $directory ] || exit; exec sh $directory/main $directory") || exit
# of a federation: NUMBER;CLUSTER
number=${number%%;*}
printf '%s\n' "$number" >"$directory/job"
printf '%s\n' "$number"
