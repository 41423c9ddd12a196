# Checks whether Slurm takes a job, and submits nothing. Appended to process/common.sh and slurm/common.sh. Variables: run_dir, options (a
# line of sh that sets the arguments).
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
[ -z "${SLURM_JOB_ID:-}" ] || exit 0
eval "$options"
sbatch --test-only "$@" --wrap=true
