# Prepended to the scripts of processes, after node/permissions.sh: what runs as the login instead of a container. Each has a directory
# with its name below run_dir:
# `id` (NAME@SALT), `labels` (JSON in a line), what process/main.sh reads, and from its start on `pid` (its number, its start time, and the
# boot) and `output`. Variables: run_dir.
# shellcheck disable=SC2034 # process/create.sh reads it
login_mask=$(umask)
umask 077
# in a directory of all users, such as /var/tmp, another one may have created it, with files that say what they like
state_dir=${run_dir%/run}
case $(stat -c '%u %A' -- "$state_dir" 2>/dev/null) in
'' | "$(id -u) d"????-??-*) ;;
*)
  echo "$state_dir is not a directory of $(id -un), or others can change it; set cluster.state_dir (under Slurm, slurm.state_dir) to another one" >&2
  exit 1
  ;;
esac
# what is above it decides what it is; who creates it first in a directory of all users, such as /var/tmp, is found above
refuse_exposed "$state_dir" create
boot=$(cat /proc/sys/kernel/random/boot_id)
# reads the state of a process and its start time in ticks since the boot (proc_pid_stat(5)); its name may contain any character
read_stat() { # PID
  state='' start=''
  { IFS= read -r stat <"/proc/$1/stat"; } 2>/dev/null || return
  # shellcheck disable=SC2086 # these are words
  set -- ${stat##*) }
  state=$1 start=${20}
}
# tests whether the main process in a directory has not ended; sets pid
is_running() { # DIRECTORY
  { read -r pid since on <"$1/pid"; } 2>/dev/null || return
  [ "$on" = "$boot" ] && read_stat "$pid" && [ "$start" = "$since" ] && case $state in [ZX]) return 1 ;; esac
}
# sets the directory of a process that is given by its name or its id; fails if there is none
find_process() { # NAME-OR-ID
  directory=$run_dir/${1%@*}
  { read -r id <"$directory/id"; } 2>/dev/null || return
  case $1 in *@*) [ "$id" = "$1" ] ;; esac
}
must_find() { # NAME-OR-ID
  find_process "$1" || {
    echo "there is no $1" >&2
    exit 1
  }
}
# prints these processes and all that descend from them, but for those that run this script
descendants() { # PID…
  cat /proc/[0-9]*/stat 2>/dev/null | LC_ALL=C sed -n 's/^\([0-9]*\) .*) [^ ] \([0-9]*\) .*/\1 \2/p' | awk -v roots="$*" -v self="$$" '
    { parent[$1] = $2 }
    END {
      count = split(roots, list, " ")
      for (i = 1; i <= count; i++) known[list[i]]
      do {
        grown = 0
        for (pid in parent) if (!(pid in known) && parent[pid] in known) { known[pid]; grown = 1 }
      } while (grown)
      # who calls this from a shell in there goes on
      for (pid = self; pid in parent; pid = parent[pid]) delete known[pid]
      for (pid in known) print pid
    }'
}
# kills everything that the process in `directory` has started, and waits for its end. The variable that main.sh sets shows what belongs to
# it; sshd writes over its own, so its descendants are killed as well
kill_all() { # ID
  tries=0
  while :; do
    found=$(marked "^HVDCTL_PROCESS=$1\$" /proc/[0-9]*/environ) || exit
    roots=
    ! is_running "$directory" || roots=$pid
    for file in $found; do roots="$roots $(pid_of "$file")"; done
    left=
    # shellcheck disable=SC2086 # these are numbers
    for number in $([ -z "$roots" ] || descendants $roots); do
      if read_stat "$number"; then case $state in [ZX]) ;; *) left="$left $number" ;; esac; fi
    done
    [ -n "$left" ] || return 0
    # shellcheck disable=SC2086 # these are numbers
    kill -KILL $left 2>/dev/null
    tries=$((tries + 1))
    # what waits in the kernel ends when that answers
    [ "$tries" -lt 50 ] || {
      echo "these processes cannot be ended:$left" >&2
      exit 1
    }
    sleep 0.1
  done
}
# logind may be set to end what a login has started (logind.conf(5)); what the user's own manager runs stays if that lingers. Sets `by`, the
# command that lets the manager run something, or nothing
find_manager() {
  by=
  manager='org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager'
  # shellcheck disable=SC2086 # these are words
  case $(id -u):$(busctl get-property $manager KillUserProcesses 2>/dev/null) in
  0:*) ;;
  *true)
    # shellcheck disable=SC2034 # process/start.sh reads it
    by='systemd-run --user --scope --quiet --'
    case $(loginctl show-user "$(id -un)" --property=Linger 2>/dev/null) in
    *yes) ;;
    *)
      echo "logind ends the processes of a login session (KillUserProcesses=yes), unless $(id -un) lingers: loginctl enable-linger" >&2
      exit 1
      ;;
    esac
    ;;
  esac
}
