# Prepended to the scripts in lease. Variables: run (the directory that a reboot clears, /run), private (where hvdctl works as a login without
# root: the directory of all that it keeps), cluster, expires (seconds).
# The lease is a file of "KEY VALUE" lines for model/lease.rs; its modification time is the last renewal.
command -v flock >/dev/null || {
  echo "flock: not found (util-linux)" >&2
  exit 127
}
file=$cluster.lease
# a kernel without user namespaces has no such file. With a rootless engine, root is an ordinary user of the node, and may write only in
# that user's directories
user=$(awk 'NR == 1 { print $2 }' /proc/self/uid_map 2>/dev/null)
directory() { # COMMAND: changes to the first of the two directories for which it succeeds
  for place in "$run/hvdctl" "$run/user/${user:-0}/hvdctl"; do
    if "$@"; then
      cd "$place" && return
    fi
  done
  return 1
}
# creates the directory of a login without root: every command that writes has the lease. In a directory of all users, such as /var/tmp,
# another one may have created it
own_private() {
  [ -d "${private%/*}/" ] || mkdir -p -- "${private%/*}" || return
  error=$(mkdir -m 700 -- "$private" 2>&1) || [ -d "$private" ] || {
    printf '%s\n' "$error" >&2
    return 1
  }
  [ -n "$error" ] || : >"$private/.created"
  case $(stat -c '%u %A' -- "$private") in
  "$(id -u) d"????-??-*) ;;
  *)
    echo "$private is not a directory of $(id -un), or others can change it; set cluster.state_dir (under Slurm, slurm.state_dir) to another one" >&2
    return 1
    ;;
  esac
}
writable() {
  (umask 022 && mkdir -p "$place") 2>/dev/null && [ -w "$place" ] || return
  # an ACL of the directory above may give it to a group
  [ -z "$private" ] || chmod go-w -- "$place"
}
has_lease() { [ -f "$place/$file" ]; }

# ends the script if others can write to the directory: they could replace the lock
check_place() {
  state=$(stat -c '%u %A' .) || exit
  case $state in
  "$(id -u) d"????-??-?) ;;
  *)
    echo "other users of the node can change $place (owner and mode: $state); remove it" >&2
    exit 1
    ;;
  esac
}
# runs a function under a lock: a file that only root can open, because whoever opens a file can lock it. It is open for writing, as NFSv4
# demands. Fails with 4 if another process has it for too long
alone() { # SECONDS COMMAND
  [ -e .lock ] || (umask 077 && : >>.lock) || return
  (
    error=$(2>&1 flock -w "$1" 9) || {
      [ $? != 1 ] || {
        echo "the lock $place/.lock is held by another process" >&2
        exit 4
      }
      echo "$place/.lock cannot be locked ($error): its file system may have no locks, such as Lustre mounted without flock; set" \
        "cluster.state_dir (under Slurm, slurm.state_dir) to a directory of another one" >&2
      exit 1
    }
    shift
    "$@"
  ) 9<>.lock
}

# tests whether the lease was renewed recently; a clock that was set back does not extend it
fresh() {
  [ -f "$file" ] || return 1
  age=$(($(date +%s) - $(stat -c %Y "$file")))
  [ "$age" -le "$expires" ] && [ "$age" -ge "-$expires" ]
}
is_of() { # ID
  { read -r _ there <"$file"; } 2>/dev/null && [ "$there" = "$1" ]
}
show() {
  # a lease that is released meanwhile is none
  if ! { lease=$(cat "$file") && renewed=$(stat -c %Y "$file"); }; then
    [ ! -e "$file" ]
    return
  fi
  printf '%s\n' "$lease"
  echo "renewed $renewed"
  echo "now $(date +%s)"
}
