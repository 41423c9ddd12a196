# Prepended to node/facts.sh, job/end.sh and upload/common.sh.
# Lists the files /proc/PID/environ of root's processes with a variable that matches: jobs run as root in their containers, and any user
# can start a process with any variable. Who runs a process is the owner of its directory; the files in there are root's as soon as the
# process wants that (PR_SET_DUMPABLE), and those of other users are not even opened, because reading them may block. With a rootless
# engine, root is the user. A failure of stat or grep must not be mistaken for "no processes": with -s grep is silent about processes
# that have just ended, so everything else that it prints is an error.
marked() { # PATTERN FILE…
  [ -e /proc/self/environ ] || { echo "cannot search the processes: /proc is not mounted" >&2; return 1; }
  pattern=$1
  shift
  [ $# -gt 0 ] || return 0
  root=$(id -u) || return
  owners=$(printf '%s\n' "$@" | sed 's|/environ$||' | LC_ALL=C xargs stat -c '%u %n' -- 2>&1)
  errors=$(printf '%s\n' "$owners" | grep -v -e '^[0-9]* /proc/[0-9]*$' -e '^[^ ]*stat: .*: No such file or directory' -e '^[^ ]*stat: .*: No such process')
  [ -z "$errors" ] || { printf 'cannot search the processes: %s\n' "$errors" >&2; return 1; }
  # shellcheck disable=SC2046 # they have no spaces
  set -- $(printf '%s\n' "$owners" | sed -n "s|^$root \(/proc/[0-9]*\)\$|\1/environ|p")
  [ $# -gt 0 ] || return 0
  marked=$(LC_ALL=C grep -lsz -e "$pattern" -- "$@" 2>&1)
  code=$?
  for file in $marked; do
    case $file in /proc/[0-9]*/environ) ;; *) code=failed ;; esac
  done
  case $code in
  # 2: a process has ended meanwhile
  [012]) [ -z "$marked" ] || printf '%s\n' "$marked" ;;
  *)
    printf 'cannot search the processes: %s\n' "$marked" >&2
    return 1
    ;;
  esac
}
pid_of() { # /proc/PID/environ
  set -- "${1%/environ}"
  echo "${1#/proc/}"
}
