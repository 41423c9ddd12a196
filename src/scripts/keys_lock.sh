# In front of the scripts that write the key directory: one at a time, where the node has flock. Nobody else writes there
# then, so that what a push or a rotation before this one was cut off in is cleared away.
alone() {
  command -v flock >/dev/null 2>&1 || return 0
  exec 9<.
  flock -w 30 9 || {
    echo "another hvdctl is writing there; run the same command again" >&2
    exit 1
  }
  rm -f ./.*.hvdctl.*
}
