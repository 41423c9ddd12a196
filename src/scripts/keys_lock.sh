# In front of the scripts that write the key directory: one at a time. No other script writes there then, so that temporary files are
# those of an interrupted push or rotation, and are removed.
alone() {
  command -v flock >/dev/null || {
    echo "flock: not found (util-linux)" >&2
    exit 127
  }
  exec 9<.
  flock -w 30 9 || {
    echo "another hvdctl is writing there; run the same command again" >&2
    exit 1
  }
  rm -f ./.*.hvdctl.*
}
