# Checks whether Slurm takes a job, and submits nothing. Appended to process/common.sh and slurm/common.sh. Variables: run_dir, options (a
# line of sh that sets the arguments), ranks (how many the job has, or 0 for as many as there
# are tasks), shared_gpus (why steps need one node's GPUs at the same time; empty if none do), instead (the way out of that).
! program=$(missing) || {
  echo "$program: not found, neither in PATH ($PATH) nor in that of a login shell ($tried): this is not a login node of Slurm, or a start-up" \
    "file of login shells, such as ~/.bash_profile, has to set PATH or load Slurm's module" >&2
  exit 1
}
asks_for_gpus() { # OPTION…
  before=
  for option; do
    case $before:$option in *:--gres=*gpu* | --gres:*gpu* | *:--gpus* | *:-G*) return 0 ;; esac
    before=$option
  done
  return 1
}
# 20.11 was the first in which steps can share what the job has (srun --overlap), and until 22.05 they share only CPUs
version=$(sbatch --version) || exit
eval "$options"
case ${version##* } in
1?.* | 20.0*)
  echo "Slurm 20.11 or later is needed, but this is $version" >&2
  exit 1
  ;;
20.11.* | 21.08.*)
  [ -z "$shared_gpus" ] || ! asks_for_gpus "$@" || {
    echo "$shared_gpus, and in this Slurm ($version) steps cannot share GPUs: $instead, or use Slurm 22.05 or later" >&2
    exit 1
  }
  ;;
esac
# tests whether Slurm has refused only to start a job now: with --test-only it says of a job that waits for nodes which are drained, down or
# reserved what it says of one that no nodes could ever run, and sbatch queues the first
may_run_later() { # OPTION…
  case $complaint in
  *'not available now'* | *'Requested nodes are busy'* | *'Required node not available'*) return 0 ;;
  *'node configuration is not available'*) ;;
  *) return 1 ;;
  esac
  partitions=${SBATCH_PARTITION:-} before=''
  for option; do
    case $before in -p | --partition) partitions=$option ;; esac
    case $option in
    --partition=*) partitions=${option#*=} ;;
    -p?*) partitions=${option#-p} ;;
    esac
    before=$option
  done
  # the default one has an asterisk behind its name; a site may show no nodes (PrivateData)
  states=$(sinfo --all --noheader --format='%P %T' 2>/dev/null | awk -v wanted="$partitions" '
    BEGIN { count = split(wanted, names, ","); for (i = 1; i <= count; i++) is_wanted[names[i]] }
    { is_default = sub(/\*$/, "", $1) }
    count ? $1 in is_wanted : is_default { print $2 }')
  if [ -n "$states" ] && ! printf '%s\n' "$states" | grep -Eqv '^(idle|mixed|allocated|completing|planned)$'; then
    # all nodes are up; one may have come back since
    sbatch --test-only "$@" --wrap=true >/dev/null 2>&1
  fi
}
# within an allocation nothing is submitted
if [ -n "${SLURM_JOB_ID:-}" ]; then
  # a list such as 2(x3),1
  tasks=$(($(printf '%s' "${SLURM_TASKS_PER_NODE:-0}" | sed 's/(x\([0-9]*\))/*\1/g; s/,/+/g')))
  [ "${ranks:-0}" -le "$tasks" ] || {
    echo "this is inside job $SLURM_JOB_ID of Slurm, which has $tasks task$([ "$tasks" = 1 ] || echo s), but $ranks ranks are to start; to submit a new job: env -u SLURM_JOB_ID hvdctl …" >&2
    exit 1
  }
  echo "hvdctl: within $SLURM_JOB_ID"
  exit 0
fi
complaint=$(sbatch --test-only "$@" --wrap=true 2>&1) || {
  code=$?
  ! may_run_later "$@" || exit 0
  printf '%s\n' "$complaint" >&2
  exit "$code"
}
