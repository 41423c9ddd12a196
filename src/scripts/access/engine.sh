engine=$1 host=$2
shift 2
command -v "$engine" >/dev/null 2>&1 || { echo "$engine: command not found" >&2; exit 127; }
if [ "$engine" = docker ]; then
  [ -z "$host" ] || export DOCKER_HOST="$host"
else
  # with them, podman is the client of another service, or has another store than the service
  unset CONTAINER_HOST CONTAINER_CONNECTION CONTAINER_SSHKEY
  unset CONTAINERS_CONF CONTAINERS_CONF_OVERRIDE CONTAINERS_STORAGE_CONF STORAGE_DRIVER STORAGE_OPTS
  # podman 5 would complain with every command on a node with the old cgroups
  export PODMAN_IGNORE_CGROUPSV1_WARNING=1
  # only the service itself is reached by its socket; the rest is done without it
  [ "${1:-}" != system ] || set -- --remote --url "$host" "$@"
fi
exec "$engine" "$@"
