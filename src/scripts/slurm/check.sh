# Checks whether Slurm takes a job, and submits nothing. Appended to process/common.sh and slurm/common.sh. Variables: run_dir, options (a
# line of sh that sets the arguments), ranks (how many the job has, or 0 for as many as there are tasks).
for program in sbatch squeue scancel scontrol srun; do
  command -v "$program" >/dev/null || {
    echo "$program: not found; this is not a Slurm login node" >&2
    exit 1
  }
done
# 20.11 was the first in which steps can share what the job has (srun --overlap)
version=$(sbatch --version) || exit
case ${version##* } in
1?.* | 20.0*)
  echo "Slurm 20.11 or later is needed, but this is $version" >&2
  exit 1
  ;;
esac
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
eval "$options"
sbatch --test-only "$@" --wrap=true
