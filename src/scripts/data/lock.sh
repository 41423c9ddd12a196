# Follows upload/common.sh, whose first argument is data_dir here, in the scripts that change data. A script may outlive the hvdctl that
# started it. The file `push` in .NAME@CLUSTER has the mark of the last push that has begun: an earlier one puts nothing into place. The
# locks are files there, which no other user could ever open.

# waits until no other script puts these data into place or removes them, and keeps others waiting until the end
lock() { # [SECONDS]
  # an earlier hvdctl left it open
  chmod 700 "$known" || exit
  exec 9>>"$known/lock" || exit
  flock -w "${1:-30}" 9 && return
  [ $? = 1 ] && echo "another command is still changing these data on the node" >&2
  exit 1
}
# ends a push that still writes to the staging directory, whose hvdctl is lost, and keeps others from writing until the end of this script
# and of all that it starts: files are hashed once, when they arrive
lock_stage() {
  exec 7>>"$known/receiving" || exit
  attempts=0
  until flock -w 1 7; do
    [ $? = 1 ] || exit 1
    attempts=$((attempts + 1))
    if [ "$attempts" -gt 20 ]; then
      echo "an earlier push is still receiving these data on the node" >&2
      exit 1
    fi
    end_receiver
  done
}
# ends the process that `pid` names, if it is one of those that have the lock: the number may be another one's by now
end_receiver() {
  receiver=$(cat "$known/stage/pid" 2>/dev/null)
  [ -n "$receiver" ] || return 0
  held=$(readlink "/proc/$receiver/fd/7" 2>/dev/null)
  [ "$held" != "$(readlink -f "$known/receiving")" ] || kill "$receiver" 2>/dev/null
}
