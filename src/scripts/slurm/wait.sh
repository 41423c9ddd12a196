# Waits until the job of a process has ended. Ends with its reader, to which it writes now and then. Appended to process/common.sh and
# slurm/common.sh. Variables: run_dir, which (its name or id).
# in tenths of a second: since Slurm was asked, and between two looks
passed=30 pause=0
while find_process "$which" && [ ! -e "$directory/done" ]; do
  if [ "$passed" -ge 30 ]; then
    # short jobs are seen to end at once; long ones take no time of the node
    [ "$pause" = 5 ] || pause=$((pause + 1))
    passed=0
    # slurmctld answers for all users: it is asked seldom, and a failure, as while it is restarted, says nothing
    if all=$(queue 2>/dev/null); then
      find_job "$id" "$all"
      ! has_ended "$now" || break
      echo running || exit
    fi
  fi
  passed=$((passed + pause))
  # not every sleep knows fractions of a second
  sleep "0.$pause" 2>/dev/null || {
    sleep 1
    passed=$((passed + 10))
  }
done
echo ended
