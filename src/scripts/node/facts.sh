# Prints the state of a node as "KEY VALUE" lines for node/facts.rs. Appended to machine.sh, nvidia_smi.sh, gpus.sh, accelerators.sh, marked.sh,
# killed.sh and job/directory.sh.
# Variables: ssh_dir, jobs_dir, projects_dir, data_dir, run_dir (nothing where containers run), devices, mounts (paths that containers get, one a
# line), cluster, port, network_dir (of the encrypted network; nothing without one). Changes nothing. Fails if a tool fails, so that an error is not
# mistaken for "nothing found".

# prints a file, of which a job may have made a link, a pipe or one without an end: at most 1 MiB of a regular one. One that is removed
# meanwhile is empty
contents() {
  regular "$1" || return 0
  dd if="$1" iflag=nofollow,nonblock bs=1048576 count=1 status=none || ! regular "$1"
}

# the GPUs that CDI files offer to Podman: `file PATH`, `unreadable PATH` and `name NAME` of each; nothing where Podman may read other
# directories (containers.conf(5))
report_cdi() {
  command -v podman >/dev/null 2>&1 || return 0
  set -- /usr/share/containers /etc/containers "${XDG_CONFIG_HOME:-${HOME:-}/.config}/containers"
  for directory; do
    for file in "$directory/containers.conf" "$directory"/containers.conf.d/*.conf; do
      ! grep -qs '^[[:space:]]*cdi_spec_dirs[[:space:]]*=' "$file" || return 0
    done
  done
  say cdi read
  for file in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
    [ -f "$file" ] || continue
    if [ ! -r "$file" ]; then
      say cdi unreadable "$file"
      continue
    fi
    grep -qE "kind[\"']?[[:space:]]*:[[:space:]]*[\"']?nvidia\.com/gpu([^0-9A-Za-z_.-]|$)" "$file" || continue
    say cdi file "$file"
    # only devices have a name (the specification of CDI)
    grep -oE "(^|[[:space:],{-])[\"']?name[\"']?[[:space:]]*:[[:space:]]*(\"[^\"]*\"|'[^']*'|[^][:space:],{}\"']+)" "$file" |
      head -n 1000 | sed "s/.*name[\"']\{0,1\}[[:space:]]*:[[:space:]]*[\"']\{0,1\}/cdi name /; s/[\"']\$//"
  done
}
report_cdi || exit

# prints the id of the container of a process, which may have ended, or of what runs as a process of the login (process/common.sh)
container_of() { # PID
  if [ -n "$run_dir" ]; then
    # anybody may have created it before the login
    [ "$(stat -c %u -- "${run_dir%/run}" 2>/dev/null)" = "$(id -u)" ] || return
    set +f
    # the sshd of a worker is a child of its main process, and writes its state over its environment
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    for file in "$run_dir"/*/pid; do
      { read -r main since _ <"$file"; } 2>/dev/null || continue
      # a later process may have the number
      case $main in "$1" | "$parent") ;; *) continue ;; esac
      [ "$(sed 's/.*) //' "/proc/$main/stat" | cut -d' ' -f20)" = "$since" ] || continue
      cat "${file%/pid}/id"
      return
    done
    { tr '\0' '\n' <"/proc/$1/environ"; } 2>/dev/null | sed -n 's/^HVDCTL_PROCESS=//p' | head -n 1
    return
  fi
  ids=$(sed -n 's/.*\([0-9a-f]\{64\}\).*/\1/p' "/proc/$1/cgroup" 2>/dev/null)
  if [ -z "$ids" ] && [ "$(stat -c %u "/proc/$1" 2>/dev/null)" = "$(id -u)" ]; then
    # without root, Podman makes no cgroups of version 1. It mounts a file of the container's directory in all of them
    ids=$(sed -n 's:.*/\([0-9a-f]\{64\}\)/userdata/\.containerenv /run/\.containerenv .*:\1:p' "/proc/$1/mountinfo" 2>/dev/null)
  fi
  printf '%s' "${ids##*"$newline"}"
}
# the address of the own name, where no container has another one
[ -z "$run_dir" ] || say own-address "$(timeout 5 getent ahostsv4 "$hostname" | { read -r address _ && echo "$address"; })"
# ports in use: PORT…
sockets=$(ss -Hltn) || exit
ports=' '
report_port() { # STATE RECEIVED SENT ADDRESS PEER
  [ $# -ge 5 ] || return 0
  case $ports in *" ${4##*:} "*) ;; *) ports="$ports${4##*:} " ;; esac
}
each_line report_port "$sockets"
say ports "${ports# }"
# the programs that listen on the workers' port: ADDRESS PID USER CONTAINER PROGRAM
report_socket() { # STATE RECEIVED SENT ADDRESS PEER USER…
  [ $# -ge 5 ] || return 0
  local=$4
  shift 5
  users=$*
  [ "${local##*:}" = "$port" ] || return 0
  pid=- user=- container=- program=-
  case $users in
  *pid=*)
    pid=${users#*pid=}
    pid=${pid%%[!0-9]*}
    # the process may have ended
    user=$(stat -c %U "/proc/$pid" 2>/dev/null)
    container=$(container_of "$pid")
    read -r program 2>/dev/null <"/proc/$pid/comm"
    ;;
  esac
  say listener "$local" "$pid" "${user:--}" "${container:--}" "$program"
  # /dev/shm of a worker: BYTES-OF-A-BLOCK BLOCKS FREE-BLOCKS
  [ -n "$run_dir" ] || [ "${container:--}" = - ] || say shm "$(stat -f -c '%S %b %a' "/proc/$pid/root/dev/shm" 2>/dev/null)"
}
case $ports in
*" $port "*)
  # for the processes, ss reads what every process of the machine has open, which takes longer than all else here
  sockets=$(ss -Hltnp "sport = :$port") || exit
  each_line report_socket "$sockets"
  ;;
esac

# devices and directories that containers of a rootless engine cannot open, because they have no groups of the login: WHAT PATH
report_denied() { # WHAT BITS PATH…
  [ "$mapped" != 0 ] || return 0
  what=$1 bits=$2
  shift 2
  for path; do
    case $bits in
    rw) if [ ! -c "$path" ] || { [ -r "$path" ] && [ -w "$path" ]; }; then continue; fi ;;
    *) if [ ! -e "$path" ] || { [ -r "$path" ] && { [ ! -d "$path" ] || [ -x "$path" ]; }; }; then continue; fi ;;
    esac
    say denied "$what" "$path"
  done
}
# prints a directory that only root may enter, and others may
report_unclosed() { # MODE BITS UID GID PATH
  case $private in *"$newline$5$newline"*) ;; *) return 0 ;; esac
  case $2 in 0 | *00) ;; *) say unclosed "$5" ;; esac
}
# the cluster's directories: who can change them, what is missing, and what others may enter
private=$newline
follow ssh "$ssh_dir" && follow jobs "$jobs_dir" && follow projects "$projects_dir" && follow data "$data_dir" || exit
for directory in "$jobs_dir" "$jobs_dir/.worker@$cluster"; do
  if [ -d "$directory" ]; then
    need_state "$directory"
    private=$private$directory$newline
  else
    say missing "$directory"
  fi
done
[ -d "$projects_dir" ] || say missing "$projects_dir"
# a group may enter projects and data: that of this login, or of another one with which hvdctl has worked here
find_unclosed() { # DIRECTORY
  [ -d "$1" ] || return 0
  find "$1" -ignore_readdir_race -mindepth 1 -maxdepth 1 -type d '(' -perm /027 -o -name ".*@$cluster" -perm /077 ')' |
    while IFS= read -r directory; do
      name=${directory##*/}
      name=${name%%+*}
      case $name in
      .*"@$cluster") ;;
      *) [ -d "$1/.$name@$cluster" ] || continue ;;
      esac
      say unclosed "$directory"
    done
}
find_unclosed "$projects_dir" && find_unclosed "$data_dir" || exit
report_exposed report_unclosed || exit

# disk: WHAT KILOBYTES DIRECTORY; inodes: WHAT COUNT DIRECTORY, if there is a limit; the nearest existing parent
nearest() {
  directory=$1
  until [ -d "$directory" ]; do directory=${directory%/*} directory=${directory:-/}; done
}
set -f
IFS=$newline
# shellcheck disable=SC2086 # each line is an argument
set -- $devices
unset IFS
set +f
for given; do
  if [ -d "$given" ]; then report_denied device rw "$given"/*; else report_denied device rw "$given"; fi
done
set -f
IFS=$newline
# shellcheck disable=SC2086 # so is it here
set -- $mounts
unset IFS
set +f
report_denied directory r "$@"
# and directories that nodes may share: WHAT FILE-SYSTEM DIRECTORY
set --
# what a rootless engine calls root may not write everywhere; its number is another one outside (node/permissions.sh)
[ "$mapped" = 0 ] || say home "$(timeout 5 getent passwd "$mapped" | cut -d: -f6)"
for what in ssh jobs projects data; do
  case $what in
  ssh) directory=$ssh_dir ;;
  jobs) directory=$jobs_dir ;;
  projects) directory=$projects_dir ;;
  data) directory=$data_dir ;;
  esac
  nearest "$directory"
  set -- "$@" "$directory"
  [ -w "$directory" ] || say unwritable "$what" "$directory"
done
systems=$(stat -f -c '%a %S %c %d %T' -- "$@") || exit
ssh=$1 jobs=$2 projects=$3 data=$4 what=
report_system() { # BLOCKS SIZE INODES FREE-INODES TYPE…
  # the systems are in the order of the directories
  case $what in
  '') what=ssh directory=$ssh ;;
  ssh) what=jobs directory=$jobs ;;
  jobs) what=projects directory=$projects ;;
  *) what=data directory=$data ;;
  esac
  space=$(($1 * $2 / 1024))
  inodes=$3 free_inodes=$4
  shift 4
  # a type that is not known has a space
  IFS=
  type=$*
  unset IFS
  say directory "$what" "${type:--}" "$directory"
  case $what in jobs | projects) say disk "$what" "$space" "$directory" ;; esac
  [ "$what" = ssh ] || [ "$inodes" = 0 ] || say inodes "$what" "$free_inodes" "$directory"
}
each_line report_system "$systems"

# pushed data: NAME HASH INODE of each; no hash (`-`) where a push is incomplete, no inode before its files are in place
if [ -d "$data_dir" ]; then
  for known in "$data_dir"/.*"@$cluster"; do
    [ -f "$known/shipped" ] || continue
    name=${known##*/.}
    tree=$(contents "$known/tree") || exit
    name=${name%"@$cluster"} inode=
    if [ -d "$data_dir/$name" ] && [ ! -h "$data_dir/$name" ]; then
      # they may have been removed meanwhile
      inode=$(stat -c %i -- "$data_dir/$name") || [ ! -e "$data_dir/$name" ] || exit
    fi
    say pushed "$name" "${tree:--}" "${inode:--}"
  done
fi

# virtualenvs that are complete (env/common.sh): NAME DIRECTORY
if [ -n "$run_dir" ]; then
  for link in "${run_dir%/run}/env"/*; do
    [ ! -h "$link" ] || say virtualenv "${link##*/}" "$(readlink "$link")"
  done
fi

# runs a command in the directory of a job, if that is there
of_job() ( # ID COMMAND…
  job=$1
  shift
  ! enter "$job" 2>/dev/null || "$@"
)
# processes of jobs: JOB PID CONTAINER CLUSTER, and whether they were killed
files=$(marked '^HVDCTL_JOB=' /proc/[0-9]*/environ) || exit
for file in $files; do
  pid=$(pid_of "$file")
  # the process may have ended
  job=$({ tr '\0' '\n' <"$file"; } 2>/dev/null | sed -n 's/^HVDCTL_JOB=//p' | head -n 1)
  case $job in '' | *[!0-9A-Za-z-]*) continue ;; esac
  container=$(container_of "$pid")
  record=$(of_job "$job" contents job.json) || exit
  owner=$(printf '%s\n' "$record" | sed -n 's/.*"cluster":"\([0-9A-Za-z._-]*\)".*/\1/p' | head -n 1)
  if killed "$pid"; then killed=killed; else killed=-; fi
  say rank "$job" "$pid" "${container:--}" "${owner:--}" "$killed"
done
# this cluster's jobs that have not ended here: env.json is removed when a job ends on a node. JOB RECORD. A record that does not show
# its cluster, because a full disk cut it off or a newer hvdctl wrote it, may be one of them
open_job() { # ID
  [ -e env.json ] && [ ! -e result.json ] || return 0
  record=$(contents job.json) || return
  # the job may have ended meanwhile
  [ -e env.json ] || return 0
  case $record in
  *"\"cluster\":\"$cluster\""*) ;;
  *'"cluster":"'*'"'*) return 0 ;;
  esac
  say open "$1 $(printf '%s' "$record" | tr '\n\r' '  ')"
  # its ranks that make no progress: JOB RANK SINCE WHAT (waiting.py)
  for idle in idle.*; do
    case ${idle#idle.} in '' | *[!0-9]*) continue ;; esac
    waits=$(contents "$idle") || return
    say idle "$1 ${idle#idle.} $(printf '%s\n' "$waits" | head -n 1)"
  done
}
for file in "$jobs_dir"/*/env.json; do
  job=${file%/env.json}
  of_job "${job##*/}" open_job "${job##*/}" || exit
done
# what benchmarks have measured here last, by which ranks know the speed of the node: ENTRY. A ledger that cannot be read delays no job
ledger=$jobs_dir/.ledger@$cluster
if regular "$ledger"; then
  host=$(printf '%s' "$hostname" | tr -cd 'A-Za-z0-9._-')
  tail -c 65536 "$ledger" 2>/dev/null | LC_ALL=C grep -aF "\"host\":\"$host\",\"what\":\"bench\"," | tail -n 9 |
    LC_ALL=C cut -c 1-500 | sed 's/^/measured /'
fi
# a mark that cannot be read counts as well
[ ! -e "$jobs_dir/.drained@$cluster" ] || say drained "$(contents "$jobs_dir/.drained@$cluster" | head -n 1)"
if [ -n "$network_dir" ]; then
  # each is a line, and is replaced as a whole
  for part in file:network state:state; do
    [ ! -e "$network_dir/${part#*:}.json" ] || say "network-${part%:*}" "$(contents "$network_dir/${part#*:}.json" | head -n 1)"
  done
  routes=$(ip -4 route show table all) || exit
  # those of table local are the node's own addresses
  printf '%s\n' "$routes" | grep -v ' table local' | sed 's/^/route /' || :
fi
say clock "$(date +%s.%N)"
[ -d "$ssh_dir" ] || exit 0
cd "$ssh_dir" || exit
state=$(stat -c '. %a %u:%g' .) || exit
[ "$(id -u)" = 0 ] || say login "$(id -u):$(id -g)"
say dir "$state"
set --
texts=
for file in *; do
  # names with a space are not key files, and the format cannot represent them
  case $file in -* | *[!A-Za-z0-9._-]*) continue ;; esac
  [ -f "$file" ] || continue
  set -- "$@" "$file"
  case $file in *.pub | authorized_keys | known_hosts) texts="$texts $file" ;; esac
done
[ $# -gt 0 ] || exit 0
stat -c 'file %n %a %u:%g' "$@" || for file; do
  # it has been removed meanwhile
  [ ! -e "$file" ] || stat "$file" >/dev/null || exit
done
[ -n "$texts" ] || exit 0
# as keys/push.sh reads them
# shellcheck disable=SC2086 # they have no spaces
LC_ALL=C awk '{ print "text", FILENAME, $0 }' $texts || exit
