# Appended to process/common.sh. Waits until a process has ended. Ends with its reader, to which it writes now and then. Variables: which (its
# name or id).
turn=0
while find_process "$which" && is_running "$directory"; do
  sleep 0.3
  turn=$((turn + 1))
  [ "$((turn % 30))" != 0 ] || echo running || exit
done
echo ended
