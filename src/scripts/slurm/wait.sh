# Waits until the job of a process has ended. Ends with its reader, to which it writes now and then. Appended to process/common.sh and
# slurm/common.sh. Variables: run_dir, which (its name or id).
turn=0
while find_process "$which" && [ ! -e "$directory/done" ]; do
  # slurmctld answers for all users: it is asked seldom, and a failure, as while it is restarted, says nothing
  if [ "$((turn % 30))" = 0 ] && all=$(queue 2>/dev/null); then
    find_job "$id" "$all"
    ! has_ended "$now" || break
    echo running || exit
  fi
  turn=$((turn + 1))
  sleep 0.1
done
echo ended
