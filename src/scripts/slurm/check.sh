# Checks whether Slurm takes a job, and submits nothing. Appended to process/common.sh and slurm/common.sh. Variables: run_dir, options (a
# line of sh that sets the arguments).
! program=$(missing) || {
  echo "$program: not found, neither in PATH ($PATH) nor in that of a login shell ($tried): this is not a login node of Slurm, or a start-up" \
    "file of login shells, such as ~/.bash_profile, has to set PATH or load Slurm's module" >&2
  exit 1
}
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
