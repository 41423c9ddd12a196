# Follows a run's log on this node from a byte on, until standard input ends. Wants: jobs_dir, id, offset. The first line is the
# node's clock. Nobody has to end this: when hvdctl goes, its end of the standard input goes with it.
exec 3<&0
date +%s.%N
tail -c "+$((offset + 1))" -f "$jobs_dir/$id/log" 3<&- &
tail=$!
{
  cat <&3 >/dev/null
  kill "$tail"
} 2>/dev/null &
wait "$tail"
