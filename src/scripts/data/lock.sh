# Follows upload/common.sh, whose first argument is data_dir here, in the scripts that change data. A script may outlive the hvdctl that
# started it. The file `push` in .NAME@CLUSTER has the mark of the last push that has begun: an earlier one puts nothing into place.

# waits until no other script puts these data into place or removes them, and keeps others waiting until the end
lock() {
  exec 9<"$known" || exit
  flock -w 30 9 && return
  [ $? = 1 ] && echo "another command still changes these data on the node" >&2
  exit 1
}
# ends a push that still writes to the staging directory, whose hvdctl is lost, and keeps others from writing until the end of this script
# and of all that it starts: files are hashed once, when they arrive
lock_stage() {
  exec 7<"$known/stage" || exit
  flock -n 7 && return
  kill "$(cat "$known/stage/pid")" 2>/dev/null
  flock -w 20 7 && return
  [ $? = 1 ] && echo "an earlier push still receives these data on the node" >&2
  exit 1
}
