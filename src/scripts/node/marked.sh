# Prepended to node/facts.sh, job/end.sh and upload/common.sh.
# Lists the files /proc/PID/environ of root's processes with a variable that matches: jobs run as root in their containers, and any user
# can start a process with any variable. Who runs a process is the owner of its directory; the files in there are root's as soon as the
# process wants that (PR_SET_DUMPABLE), and those of other users are not even opened, because reading them may block. With a rootless
# engine, root is the user. A failure of grep must not be mistaken for "no processes": with -s it is silent about processes that have
# just ended, so everything else that it prints is an error.
marked() { # PATTERN FILE…
  [ -e /proc/self/environ ] || { echo "cannot search the processes: /proc is not mounted" >&2; return 1; }
  pattern=$1
  shift
  owned=
  for file; do
    # not POSIX, but known to dash, bash, ksh, zsh and busybox
    # shellcheck disable=SC3067
    [ ! -O "${file%/environ}" ] || owned="$owned $file"
  done
  # shellcheck disable=SC2086 # they have no spaces
  set -- $owned
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
