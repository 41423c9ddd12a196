# How root and the Docker Engine can be had on this node by whoever logs in, a "KEY VALUE" line each; read by
# core/access.rs. Changes nothing and asks nothing.
LC_ALL=C
export LC_ALL
say() { printf '%s\n' "$*"; }

# what the scripts for nodes call: without it some would report that there is nothing to see. Logins may lack the directory of `ip`
PATH=$PATH:/usr/sbin:/sbin
for tool in awk b2sum cut df find grep ip ps sed ss stat tar timeout xargs; do
  command -v "$tool" >/dev/null 2>&1 || say missing "$tool"
done
printf 'a\0b\0' | grep -qzxF b 2>/dev/null || say missing grep

uid=$(id -u)
say user "$(id -un)"
say shell "${SHELL:-}"
if [ "$uid" = 0 ]; then
  say sudo root
elif ! command -v sudo >/dev/null 2>&1; then
  say sudo no sudo is not installed
elif said=$(sudo -n true 2>&1); then
  say sudo yes
else
  said=$(printf '%s\n' "$said" | grep . | tail -n 1)
  # it says so to strangers too: whether the password would help is only known afterwards
  case $said in
  # the second are the words of sudo-rs
  *'password is required'* | *'interactive authentication is required'*) say sudo asks "$said" ;;
  *) say sudo no "$said" ;;
  esac
fi

if ! command -v docker >/dev/null 2>&1; then
  say engine missing
elif [ -n "${DOCKER_HOST:-}" ]; then
  say engine direct "$DOCKER_HOST"
elif grep -Eqs '"currentContext"[[:space:]]*:[[:space:]]*"[^"]' ~/.docker/config.json; then
  say engine context
elif [ -w /var/run/docker.sock ]; then
  say engine direct
elif [ -S /var/run/docker.sock ]; then
  say engine closed
fi
# where an engine without root listens (docs.docker.com, "Rootless mode")
own=${XDG_RUNTIME_DIR:-/run/user/$uid}/docker.sock
[ ! -S "$own" ] || [ ! -w "$own" ] || say own "unix://$own"
