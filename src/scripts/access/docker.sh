[ -z "$1" ] || export DOCKER_HOST="$1"
shift
command -v docker >/dev/null 2>&1 || { echo "docker: command not found" >&2; exit 127; }
exec docker "$@"
