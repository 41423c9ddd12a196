# The seed: one volume that is a Docker Engine's data with the images loaded. Loading takes half a minute a node; taking the
# layers over from the seed by hard links takes a second. Sourced, never run.
# shellcheck shell=bash

readonly SEED_VOLUME=hvdctl-lab-seed
# Whose engine fills it. Newer engines take its data over; so does the older one of bullseye, which is of the same version but for fixes.
readonly SEED_ENGINE=hvdctl-lab/node:bookworm

volume_path() { docker volume inspect --format '{{.Mountpoint}}' "$1" 2>/dev/null; }

# What the seed holds, a line "IMAGE ID" each; nothing unless it is complete.
seed_content() {
  local path
  path=$(volume_path "$SEED_VOLUME") && cat "$path/hvdctl-lab-complete" 2>/dev/null
}

# The seed holds at least these images afterwards. What else it holds stays, so that a lab with TensorFlow and one without
# can follow each other without loading anything.
seed_ensure() { # IMAGE…
  local content image
  local -a missing=()
  content=$(seed_content) || content=
  for image in "$@"; do
    grep -qxF "$image $(image_id "$image")" <<<"$content" || missing+=("$image")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  # One that holds another version of an image is made anew: the old version would never leave it.
  if [ -z "$content" ] || grep -qE "^($(IFS='|' && echo "${missing[*]}")) " <<<"$content"; then
    docker rm -f "$SEED_VOLUME" >/dev/null 2>&1 || true
    docker volume rm -f "$SEED_VOLUME" >/dev/null
    docker volume create --label "$LAB_LABEL" "$SEED_VOLUME" >/dev/null
    content='' missing=("$@")
  fi
  seed_load "$content" "${missing[@]}"
}

seed_load() { # CONTENT IMAGE…
  local -r content=$1 begun=$SECONDS
  shift
  local path image
  path=$(volume_path "$SEED_VOLUME")
  say "loading $* into the seed of the nodes' engines"
  rm -f "$path/hvdctl-lab-complete"
  docker rm -f "$SEED_VOLUME" >/dev/null 2>&1 || true
  # An engine that only loads: no network, no rules.
  docker run -d --name "$SEED_VOLUME" --label "$LAB_LABEL" "${NODE_FLAGS[@]}" -v "$SEED_VOLUME:/var/lib/docker" \
    --network none --entrypoint /usr/bin/tini "$SEED_ENGINE" -- dockerd --bridge=none --iptables=false >/dev/null
  wait_for 60 docker exec "$SEED_VOLUME" docker version || {
    docker logs --tail 15 "$SEED_VOLUME" >&2
    die "the engine that fills the seed does not answer"
  }
  docker save "$@" | timeout 900 docker exec -i "$SEED_VOLUME" docker load -q >/dev/null || die "the images could not be loaded into the seed"
  docker stop -t 20 "$SEED_VOLUME" >/dev/null
  docker rm "$SEED_VOLUME" >/dev/null
  {
    [ -z "$content" ] || printf '%s\n' "$content"
    for image in "$@"; do printf '%s %s\n' "$image" "$(image_id "$image")"; done
  } >"$path/hvdctl-lab-complete"
  say "loaded in $((SECONDS - begun)) s"
}

# A node's volume made from the seed. Layers never change once they are made, whatever happens to their containers and tags,
# so all nodes share their files; all else (the engine writes its databases in place) is a copy.
seed_clone() { # VOLUME
  local -r from=$(volume_path "$SEED_VOLUME") volume=$1
  docker volume rm -f "$volume" >/dev/null && docker volume create --label "$LAB_LABEL" "$volume" >/dev/null || return 1
  local to layer
  to=$(volume_path "$volume") && [ -d "$from/overlay2" ] || return 1
  (
    cd "$from" || exit 1
    # network/ names the bridge of the engine that made the seed, which had none.
    for entry in *; do
      case $entry in overlay2 | network | containers | hvdctl-lab-complete) ;; *) cp -a "$entry" "$to/" || exit 1 ;; esac
    done
    mkdir -m 710 "$to/overlay2" && cp -a overlay2/l "$to/overlay2/" || exit 1
    for layer in overlay2/*/diff; do
      layer=${layer%/diff}
      mkdir -m 710 "$to/$layer" && cp -al "$layer/diff" "$to/$layer/" || exit 1
      find "$layer" -mindepth 1 -maxdepth 1 ! -name diff -exec cp -a -t "$to/$layer" {} + || exit 1
    done
  )
}
