# Appended to node/marked.sh and env/common.sh in the scripts that change a virtualenv. Variables: name.

# keeps others from changing this virtualenv until the end of the script and of all that it starts. NFSv4 locks only a file that is open for
# writing
lock() {
  command -v flock >/dev/null || fail "flock: not found (util-linux)" 127
  (umask 077 && : >>"$envs/.lock.$name") || exit
  exec 9<>"$envs/.lock.$name" || exit
  flock -w 30 9 && return
  [ $? != 1 ] || fail "another command is changing the virtualenv $name on this node"
  exit 1
}

# prints the processes of this login that have activated the virtualenv in a directory, without this script. The
# environment of a worker is in a file: its sshd writes over its own
users() { # DIRECTORY
  pattern=$(printf '%s\n' "$1" | sed 's/[][\.*^$]/\\&/g')
  users=$(marked "^VIRTUAL_ENV=$pattern\$" /proc/[0-9]*/environ) || return
  for file in $users; do
    pid=$(pid_of "$file")
    case $pid in "$$" | "$PPID") ;; *) echo "$pid" ;; esac
  done
  for file in "$state_dir"/run/*/environment; do
    grep -qsF -- "$1/" "$file" || continue
    if runs "${file%/*}/pid"; then echo "$pid"; fi
  done
}
# tests whether the process runs that process/main.sh has noted in a file: its number, its start time, and the boot; sets pid. Its number
# may be another one's by now
runs() { # FILE
  { read -r pid since on <"$1" && IFS= read -r stat <"/proc/$pid/stat"; } 2>/dev/null || return
  # shellcheck disable=SC2086 # these are words
  set -- ${stat##*) }
  [ "${20}" = "$since" ] && [ "$on" = "$(cat /proc/sys/kernel/random/boot_id)" ] && case $1 in [ZX]) return 1 ;; esac
}

# removes the directories of this virtualenv that are not complete, and those of earlier ones from which nothing runs
remove_others() { # DIRECTORY-THAT-STAYS
  for other in "$builds/$name".??????; do
    { [ -d "$other" ] && [ "$other" != "$1" ]; } || continue
    if [ -f "$other/hvdctl.env" ]; then
      used=$(users "$other") || continue
      [ -z "$used" ] || continue
    fi
    remove_build "$other"
  done
}
