# Ends the job of a process at once, and waits until it has left the queue; there may be none. Appended to process/common.sh and
# slurm/common.sh. Variables: run_dir, which (its name or id), remove (whether the process is also removed).
find_process "$which" || exit 0
tries=0
while [ ! -e "$directory/done" ]; do
  all=$(queue) || exit
  find_job "$id" "$all"
  ! has_ended "$now" || break
  if [ "$((tries % 20))" = 0 ]; then
    case $number in
    *.*) signal_step KILL ;;
    *) scancel "$number" || exit ;;
    esac
  fi
  tries=$((tries + 1))
  [ "$tries" -lt 100 ] || {
    echo "Slurm has not ended its job $number" >&2
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
