# Appended to process/common.sh. Waits until a process has ended. Ends with its reader, to which it writes now and then. Variables: which (its
# name or id).
turn=0
while find_process "$which" && is_running "$directory"; do
  # it holds this lock until it ends, unless an earlier hvdctl has started it; 9: the 0.3 s are over
  { flock -E 9 -w 0.3 7 7>>"$directory/lock"; } 2>/dev/null
  case $? in 9) ;; *) if is_running "$directory"; then sleep 0.3; fi ;; esac
  turn=$((turn + 1))
  [ "$((turn % 30))" != 0 ] || echo running || exit
done
echo ended
