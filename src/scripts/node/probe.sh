# Probes a machine for `init`. Appended to machine.sh, nvidia_smi.sh, gpus.sh, accelerators.sh and access/login.sh; prints "KEY VALUE" lines for
# init/draft.rs.
# Variables: images. Runs as the login itself, because its way to become root is not known yet, and changes nothing.
# a driver that does not know the query is older than the GPUs for which the answer matters
if command -v nvidia-smi >/dev/null 2>&1; then nvidia_smi compute-cap --query-gpu=compute_cap --format=csv,noheader; fi
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
  say root no "$(reason "$output")"
fi

ask() { timeout 10 "$@" </dev/null; }
# an image that cannot be inspected is not proposed
say_images() { # COMMAND…
  for image in $images; do
    if ask "$@" image inspect -f ok "$image" >/dev/null 2>&1; then say image "$image"; fi
  done
  exit 0
}

# as transport/access.rs decides
if [ -n "$podman" ] && [ -z "$has_docker" ]; then
  unset CONTAINER_HOST CONTAINER_CONNECTION CONTAINER_SSHKEY
  unset CONTAINERS_CONF CONTAINERS_CONF_OVERRIDE CONTAINERS_STORAGE_CONF STORAGE_DRIVER STORAGE_OPTS
  version() { ask "$@" --remote --url "$url" version -f '{{.Server.Version}}' 2>&1; }
  url=unix://$podman_socket
  if [ "$(id -u)" = 0 ]; then
    if output=$(version podman); then
      say podman-version login "$(last)"
      say_images podman --remote --url "$url"
    fi
  elif [ -n "$sudo" ]; then
    if output=$(version sudo -n podman); then
      say podman-version sudo "$(last)"
      say_images sudo -n podman --remote --url "$url"
    fi
  elif [ "$own" = 3 ] && [ -S "$rootless_podman" ] && url=unix://$rootless_podman && output=$(version podman); then
    say podman-version login "$(last)"
    say_images podman --remote --url "$url"
  fi
  say podman-version no "$(last)"
  exit 0
fi

if [ -z "$docker" ]; then
  say docker none
  exit 0
fi
# as transport/access.rs decides: a context without a socket here is not used
if [ -n "$context" ] && [ -z "$socket" ]; then
  DOCKER_HOST=unix:///var/run/docker.sock
  export DOCKER_HOST
fi
if output=$(ask docker version -f '{{.Server.Version}}' 2>&1); then
  say docker login "$(last)"
  sudo=''
# what sudo prints itself is not Docker's answer
elif [ -n "$sudo" ] && output=$(ask sudo -n sh -c 'docker version -f "{{.Server.Version}}" 2>&1' 2>/dev/null); then
  say docker sudo "$(last)"
elif [ -S "$rootless" ] && output=$(DOCKER_HOST=unix://$rootless ask docker version -f '{{.Server.Version}}' 2>&1); then
  say docker login "$(last)"
  sudo='' DOCKER_HOST=unix://$rootless
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
