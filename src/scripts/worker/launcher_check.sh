# Prints "missing" if the container has no program with the name in the argument; for mpirun, whose it is if not Open MPI's.
command -v "$1" >/dev/null || { echo missing; exit; }
[ "$1" = mpirun ] || exit 0
limit=
! command -v timeout >/dev/null || limit='timeout 10'
# one that is not known may be a wrapper
case $($limit mpirun --version 2>&1 </dev/null) in
*'Open MPI'* | *OpenRTE* | *PRRTE* | *prte* | *'Spectrum MPI'*) ;;
*'Intel(R) MPI'*) echo Intel MPI ;;
*HYDRA* | *MPICH*) echo MPICH ;;
esac
