# Ends the job of a process at once, and waits until it has left the queue; there may be none. Appended to process/common.sh and
# slurm/common.sh. Variables: run_dir, which (its name or id), remove (whether the process is also removed), limit (seconds).
find_process "$which" || exit 0
tries=0 until=$(($(date +%s) + limit))
while [ ! -e "$directory/done" ]; do
  # slurmctld may be starting again
  if all=$(queue 2>&1); then
    find_job "$id" "$all"
    ! has_ended "$now" || break
    said="its job $number is still ${now:-there}"
    if [ "$((tries % 20))" = 0 ]; then
      case $number in
      *.*) signal_step KILL ;;
      *) scancel "$number" || exit ;;
      esac
    fi
  else
    said=$all
  fi
  tries=$((tries + 1))
  [ "$(date +%s)" -lt "$until" ] || {
    echo "Slurm has not ended the job within $limit s: $said" >&2
    exit 1
  }
  sleep 0.5
done
# within an allocation, what srun.sh has started on other nodes outlives the main program; it has the name of the job's directory
if [ -e "$directory/step" ]; then
  # NAME-DATE-TIME-SALT@…, and the name may have hyphens
  job=$(printf '%s\n' "${id%@*}" | sed 's/.*-\([^-]*-[^-]*-[^-]*\)$/\1/')
  for step in $(squeue --all --noheader --steps --user="$(id -u)" --format='%i|%j' | sed -n "s/|hvdctl\\.$job\$//p"); do
    scancel "$step" 2>/dev/null
  done
fi
[ -n "$remove" ] || exit 0
old=$run_dir/.old.$$
mv -T "$directory" "$old" && rm -rf "$old"
