# Facts about a login that access/access.sh and node/probe.sh print, as "KEY VALUE" lines for transport/access.rs. Prepended to them.
# Changes nothing.
say() { printf '%s\n' "$*"; }
# the PATH of a login may lack the directories of `ip` and `dockerd`
PATH=$PATH:/usr/sbin:/sbin
# the shell's own user, without another program, each of which takes as long as all that the shell does by itself
me=
while read -r field _ own_uid _; do
  [ "$field" != Uid: ] || me=$own_uid
done 2>/dev/null </proc/self/status || :
me=${me:-$(id -u)}

# the distribution, for hints: its id, and those that it is like (os-release(5))
(
  for file in /etc/os-release /usr/lib/os-release; do
    # shellcheck disable=SC1090 # it is written for shells
    if [ -r "$file" ] && . "$file"; then
      say os "${ID:-} ${ID_LIKE:-}"
      break
    fi
  done
)

# prints why `sudo -n` refuses, from all that it has printed: it warns of other things as well
reason() {
  printf '%s\n' "$1" | grep -E "is required|sudoers|not allowed|can't do that" | tail -n 1 | grep . ||
    printf '%s\n' "$1" | grep . | tail -n 1
}

# prints the string that a key has in JSON. The login's configuration of Docker may hold passwords, so no more of it is printed
json() { # KEY
  tr '\n' ' ' | sed -n "s/.*\"$1\"[[:space:]]*:[[:space:]]*\"\([^\"]*\)\".*/\1/p"
}

# whether the login may open a socket: open, closed, or nothing where there is none
access() { # FILE
  if [ ! -S "$1" ]; then :; elif [ -w "$1" ]; then echo open; else echo closed; fi
}

# the engine that the environment or Docker's configuration names, in the order of the docker command (docs.docker.com, "Docker
# contexts"); sets context, and socket if that engine is at one
find_named() {
  config=${DOCKER_CONFIG:-${HOME:-}/.docker}
  by='' context='' host='' socket=''
  if [ -n "${DOCKER_HOST:-}" ]; then
    by=DOCKER_HOST host=$DOCKER_HOST
  else
    if [ -n "${DOCKER_CONTEXT:-}" ]; then
      by=DOCKER_CONTEXT context=$DOCKER_CONTEXT
    elif [ -r "$config/config.json" ]; then
      by=$config/config.json context=$(json currentContext <"$config/config.json")
    fi
    case $context in '' | default)
      by='' context=''
      return
      ;;
    esac
    id=$(printf %s "$context" | sha256sum)
    file=$config/contexts/meta/${id%% *}/meta.json
    # the context may have further endpoints, each with a host
    [ ! -r "$file" ] ||
      host=$(tr '\n' ' ' <"$file" | sed -n 's/.*"docker"[[:space:]]*:[[:space:]]*{\([^}]*\)}.*/\1/p' | json Host)
    say context "$context"
    say context-file "$file"
  fi
  say named-by "$by"
  say named-host "$host"
  case $host in unix://*) socket=$(access "${host#unix://}") ;; esac
  [ -z "$socket" ] || say named-socket "$socket"
}

docker=$(command -v docker 2>/dev/null)
# the system's socket, unless podman-docker has linked it to Podman's
system=''
case $(readlink -f /var/run/docker.sock) in */podman.sock) ;; *) system=$(access /var/run/docker.sock) ;; esac
# an engine that is installed, running or not
dockerd=$(command -v dockerd 2>/dev/null)
for unit in docker.service snap.docker.dockerd.service; do
  # a link to /dev/null masks a unit
  if [ -s "/etc/systemd/system/$unit" ] || { [ ! -e "/etc/systemd/system/$unit" ] && [ -s "/usr/lib/systemd/system/$unit" ]; }; then
    dockerd=$unit
  fi
done
# whether there is an engine of Docker, running or not
has_docker=''
if [ -z "$docker" ]; then
  say docker-command missing
  has_docker=$dockerd$system
  [ -z "$has_docker" ] || say docker-engine yes
else
  # a shell script or a link of the package podman-docker
  case $(readlink -f "$docker") in
  */podman) is_podman=yes ;;
  *) is_podman=$(head -c 512 "$docker" | LC_ALL=C grep -a 'exec .*podman') ;;
  esac
  [ -z "$is_podman" ] || say docker-command podman
  find_named
  [ -z "$system" ] || say engine "$system"
  [ -z "$dockerd" ] || say dockerd yes
  [ -n "$is_podman" ] || has_docker=$dockerd$system$by
fi
# where an engine without root listens (docs.docker.com, "Rootless mode")
rootless=${XDG_RUNTIME_DIR:-/run/user/$me}/docker.sock
if [ "$(access "$rootless")" = open ]; then
  say rootless "unix://$rootless"
  # shellcheck disable=SC2034 # node/probe.sh reads it
  [ -z "$docker" ] || [ -n "$is_podman" ] || has_docker=$rootless
fi

# tests whether a file gives the login subordinate ids, by its name or number (subuid(5)), or a directory service does (getsubids(1))
has_ids() { # FILE OPTION
  # shellcheck disable=SC2086 # the option may be none
  LOGIN=$(id -un) ID=$me awk -F: '
    ($1 == ENVIRON["LOGIN"] || $1 == ENVIRON["ID"]) && $3 > 0 { found = 1 }
    END { exit !found }' "$1" 2>/dev/null ||
    getsubids $2 "$(id -un)" 2>/dev/null | grep -q .
}
# prints what the login's own Podman lacks, and the hard limits of its service, which containers cannot exceed
report_own_podman() {
  # Podman then does without the ids (containers-storage.conf(5))
  if ! cat "${XDG_CONFIG_HOME:-${HOME:-}/.config}/containers/storage.conf" /etc/containers/storage.conf 2>/dev/null |
    grep -q '^[[:space:]]*ignore_chown_errors[[:space:]]*=[[:space:]]*"\{0,1\}true'; then
    has_ids /etc/subuid '' || say podman-lacks subuid
    has_ids /etc/subgid -g || say podman-lacks subgid
    for program in newuidmap newgidmap; do
      command -v "$program" >/dev/null 2>&1 || say podman-lacks "$program"
    done
    is_mapped=''
  else
    is_mapped=yes
  fi
  # the service itself, or what listens for it: the manager of the user's services
  listeners=$(ss -Hxlp 2>/dev/null | grep -F " $rootless_podman ")
  service=$(printf '%s\n' "$listeners" | sed -n 's/.*"podman",pid=\([0-9]*\),.*/\1/p' | head -n 1)
  if [ -n "$service" ] && [ -z "$is_mapped" ] &&
    [ "$(awk 'END { print NR == 1 && $3 == 1 }' "/proc/$service/uid_map" 2>/dev/null)" = 1 ]; then
    say podman-lacks migrate
  fi
  [ -n "$service" ] || service=$(printf '%s\n' "$listeners" | sed -n 's/.*,pid=\([0-9]*\),.*/\1/p' | head -n 1)
  for slice in /sys/fs/cgroup/user.slice /sys/fs/cgroup/systemd/user.slice; do
    [ -n "$service" ] || read -r service 2>/dev/null <"$slice/user-$me.slice/user@$me.service/init.scope/cgroup.procs"
  done
  [ -z "$service" ] || awk 'NR > 1 {
    name = substr($0, 1, 25)
    hard = substr($0, 48, 20)
    sub(/ +$/, "", name)
    sub(/ +$/, "", hard)
    print "podman-limit", hard, name
  }' "/proc/$service/limits" 2>/dev/null
}

# Podman's service: root's, which only root uses, whatever the modes say, because some programs are started without it; and
# the login's own (podman-system-service(1))
podman=$(command -v podman 2>/dev/null)
podman_socket=/run/podman/podman.sock
runtime=${XDG_RUNTIME_DIR:-/run/user/$me}
rootless_podman=$runtime/podman/podman.sock
if [ -n "$podman" ]; then
  say podman-command yes
  if [ "$me" = 0 ]; then
    [ ! -S "$podman_socket" ] || say podman open
  elif [ -S "$podman_socket" ] || { [ -d "${podman_socket%/*}" ] && [ ! -x "${podman_socket%/*}" ]; }; then
    say podman closed
  fi
  # in a directory of another user, it may be any user's
  own=$(find "$runtime" "$runtime/podman" "$rootless_podman" -prune -user "$me" 2>/dev/null | grep -c .)
  if [ "$me" != 0 ] && [ "$own" = 3 ] && [ "$(access "$rootless_podman")" = open ]; then
    say podman-rootless "unix://$rootless_podman"
    report_own_podman
  fi
fi
