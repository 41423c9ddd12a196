# Follows upload/common.sh, whose first argument is data_dir here, in the scripts that change data. A script may outlive the hvdctl that
# started it. The file `push` in .NAME@CLUSTER has the mark of the last push that has begun: an earlier one puts nothing into place.

# waits until no other script puts these data into place or removes them, and keeps others waiting until the end
lock() {
  exec 9<"$known" || exit
  flock -w 30 9 && return
  [ $? = 1 ] && echo "another command still changes these data on the node" >&2
  exit 1
}
