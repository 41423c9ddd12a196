# Facts about a login that access/access.sh and node/probe.sh print, as "KEY VALUE" lines for transport/access.rs. Prepended to them.
# Changes nothing.
say() { printf '%s\n' "$*"; }
# the PATH of a login may lack the directories of `ip` and `dockerd`
PATH=$PATH:/usr/sbin:/sbin

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
  *) is_podman=$(head -c 512 "$docker" | tr -d '\0' | grep 'exec .*podman') ;;
  esac
  [ -z "$is_podman" ] || say docker-command podman
  find_named
  [ -z "$system" ] || say engine "$system"
  [ -z "$dockerd" ] || say dockerd yes
  [ -n "$is_podman" ] || has_docker=$dockerd$system$by
fi
# where an engine without root listens (docs.docker.com, "Rootless mode")
rootless=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/docker.sock
if [ "$(access "$rootless")" = open ]; then
  say rootless "unix://$rootless"
  # shellcheck disable=SC2034 # node/probe.sh reads it
  [ -z "$docker" ] || [ -n "$is_podman" ] || has_docker=$rootless
fi

# Podman's service: root's, which only root uses, whatever the modes say, because some programs are started without it; and
# the login's own (podman-system-service(1))
podman=$(command -v podman 2>/dev/null)
podman_socket=/run/podman/podman.sock
runtime=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
rootless_podman=$runtime/podman/podman.sock
if [ -n "$podman" ]; then
  say podman-command yes
  if [ "$(id -u)" = 0 ]; then
    [ ! -S "$podman_socket" ] || say podman open
  elif [ -S "$podman_socket" ] || { [ -d "${podman_socket%/*}" ] && [ ! -x "${podman_socket%/*}" ]; }; then
    say podman closed
  fi
  # in a directory of another user, it may be any user's
  own=$(find "$runtime" "$runtime/podman" "$rootless_podman" -prune -user "$(id -u)" 2>/dev/null | grep -c .)
  [ "$(id -u)" = 0 ] || [ "$own" != 3 ] || [ "$(access "$rootless_podman")" != open ] ||
    say podman-rootless "unix://$rootless_podman"
fi
