# How the login can use root and the Docker Engine on this node, as "KEY VALUE" lines for transport/access.rs. Changes nothing and
# asks nothing.
LC_ALL=C
export LC_ALL
say() { printf '%s\n' "$*"; }

# what hvdctl's scripts call, with its Debian package: without it some would report that there is nothing to see. The PATH of a login
# may lack the directory of `ip`
PATH=$PATH:/usr/sbin:/sbin
while read -r tool package; do
  command -v "$tool" >/dev/null 2>&1 || say missing "$tool" "$package"
done <<TOOLS
awk mawk
b2sum coreutils
cut coreutils
df coreutils
find findutils
ip iproute2
ps procps
sed sed
ss iproute2
stat coreutils
tar tar
timeout coreutils
xargs findutils
TOOLS
printf 'a\0b\0' | grep -qzxF b 2>/dev/null || say missing grep grep

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
  # it asks strangers too: whether the password would help is only known afterwards
  case $said in
  # the second message is that of sudo-rs
  *'password is required'* | *'interactive authentication is required'*) say sudo asks "$said" ;;
  *) say sudo no "$said" ;;
  esac
fi

if ! command -v docker >/dev/null 2>&1; then
  : # docker's own message is the best error
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
rootless=${XDG_RUNTIME_DIR:-/run/user/$uid}/docker.sock
[ ! -S "$rootless" ] || [ ! -w "$rootless" ] || say rootless "unix://$rootless"
