# In front of the scripts about the lease. Wants: run (the directory that a restart clears, /run), cluster, expires (seconds).
# The lease is a file of "KEY VALUE" lines, read by model/lease.rs; its time of change is when it was renewed last.
command -v flock >/dev/null || {
  echo "flock: not found (util-linux)" >&2
  exit 127
}
file=$cluster.lease
# a kernel without user namespaces has no such file. Root of a rootless engine is one of the node's users, and only writes where that user may
user=$(awk 'NR == 1 { print $2 }' /proc/self/uid_map 2>/dev/null)
directory() { # COMMAND: the first place of the two where it is true
  for place in "$run/hvdctl" "$run/user/${user:-0}/hvdctl"; do
    if "$@"; then
      cd "$place" && return
    fi
  done
  return 1
}
writable() { (umask 022 && mkdir -p "$place") 2>/dev/null && [ -w "$place" ]; }
has_lease() { [ -f "$place/$file" ]; }

# alone among those who take, renew and release
alone() (
  flock -w 10 9 || {
    echo "the lock on $place is held by another process" >&2
    exit 1
  }
  "$@"
) 9<.

# whether it was renewed of late. A clock that was set back does not make it last for ever
fresh() {
  [ -f "$file" ] || return 1
  age=$(($(date +%s) - $(stat -c %Y "$file")))
  [ "$age" -le "$expires" ] && [ "$age" -ge "-$expires" ]
}
is_of() { # ID
  { read -r _ there <"$file"; } 2>/dev/null && [ "$there" = "$1" ]
}
show() {
  # given back meanwhile, it is none
  if ! { lease=$(cat "$file") && renewed=$(stat -c %Y "$file"); }; then
    [ ! -e "$file" ]
    return
  fi
  printf '%s\n' "$lease"
  echo "renewed $renewed"
  echo "now $(date +%s)"
}
