# Probes a machine for `init`. Appended to machine.sh and gpus.sh; prints "KEY VALUE" lines for init/draft.rs. Variables: images. Runs
# as the login itself, because its way to become root is not known yet, and changes nothing.
last() { printf '%s\n' "$output" | tail -n 1; }
sudo=''
if [ "$(id -u)" = 0 ]; then
  say root login
elif ! command -v sudo >/dev/null 2>&1; then
  say root no sudo: not found
elif output=$(timeout 10 sudo -n true 2>&1 </dev/null); then
  say root sudo
  sudo='sudo -n'
else
  say root no "$(last)"
fi

if ! command -v docker >/dev/null 2>&1; then
  say docker none
  exit 0
fi
# where an engine without root listens
own=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/docker.sock
ask() { timeout 10 "$@" </dev/null; }
if output=$(ask docker version -f '{{.Server.Version}}' 2>&1); then
  say docker login "$(last)"
  sudo=''
elif [ -n "$sudo" ] && output=$(ask sudo -n docker version -f '{{.Server.Version}}' 2>&1); then
  say docker sudo "$(last)"
elif [ -S "$own" ] && output=$(DOCKER_HOST=unix://$own ask docker version -f '{{.Server.Version}}' 2>&1); then
  say docker login "$(last)"
  sudo='' DOCKER_HOST=unix://$own
  export DOCKER_HOST
else
  say docker no "$(last)"
  exit 0
fi
# an image that cannot be inspected is not proposed
for image in $images; do
  # $sudo is nothing or two arguments
  # shellcheck disable=SC2086
  if ask $sudo docker image inspect -f ok "$image" >/dev/null 2>&1; then say image "$image"; fi
done
exit 0
