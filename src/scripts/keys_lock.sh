# In front of the scripts that write the key directory: one at a time, if the node has flock. No other script writes there
# then, so that temporary files are those of an interrupted push or rotation, and are removed.
alone() {
  command -v flock >/dev/null 2>&1 || return 0
  exec 9<.
  flock -w 30 9 || {
    echo "another hvdctl is writing there; run the same command again" >&2
    exit 1
  }
  rm -f ./.*.hvdctl.*
}
