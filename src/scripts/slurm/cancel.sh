# Lets Slurm end the job of a process: one that waits leaves the queue, and the main program of one that runs gets SIGTERM. There may be
# none. Appended to process/common.sh and slurm/common.sh. Variables: run_dir, which (its name or id).
find_process "$which" || exit 0
all=$(queue) || exit
find_job "$id" "$all"
! has_ended "$now" || exit 0
case $number:$now in
*.*) signal_step TERM ;;
*:RUNNING | *:COMPLETING) scancel --batch --signal=TERM "$number" ;;
*) scancel "$number" ;;
esac
