# Images: built when their inputs changed, and not touched otherwise. Sourced, never run.
# shellcheck shell=bash

readonly IMAGE_INPUTS='{{index .Config.Labels "hvdctl.lab.inputs"}}'

# A build's inputs are the files of its directory and its arguments; their hash is kept as a label of the image.
image_inputs() { # DIRECTORY [ARGUMENT…]
  { cd "$1" && find . -maxdepth 1 -type f ! -name build -print0 | sort -z | xargs -0 sha256sum && printf '%s\n' "${@:2}"; } | sha256sum | cut -c1-32
}

image_label() { docker image inspect --format "$IMAGE_INPUTS" "$1" 2>/dev/null; }

# The suite of Debian that a build starts from: its argument SUITE, or the one that its Dockerfile names.
image_suite() { # DIRECTORY [ARGUMENT…]
  { printf '%s\n' "${@:2}" | sed -n 's/^SUITE=//p'; sed -n 's/^FROM debian://p; s/^ARG SUITE=//p' "$1/Dockerfile"; } | sed 's/ .*//; q'
}

image_ensure() { # IMAGE DIRECTORY [ARGUMENT of docker build…]
  local -r image=$1 directory=$2
  shift 2
  local inputs
  inputs=$(image_inputs "$directory" "$@")
  [ "$(image_label "$image")" != "$inputs" ] || return 0
  (
    machine_lock "build-${image//[\/:]/-}"
    # Another process that had the lock may have built it.
    [ "$(image_label "$image")" != "$inputs" ] || exit 0
    suite=$(image_suite "$directory" "$@")
    [ -z "$suite" ] || base_ensure "$suite"
    image_build "$image" "$directory" "$inputs" "$@"
  ) || exit 1
}

image_build() {
  local -r image=$1 directory=$2 inputs=$3
  shift 3
  local -r log=$LAB_RUN/build-${image//[\/:]/-}.log
  local -r begun=$SECONDS
  say "building $image (log: $log)"
  local before
  before=$(image_id "$image") || before=
  # The host's network, because a bridge may lack this machine's way to its package mirrors; the classic builder, because
  # BuildKit needs a plugin that Debian's docker.io lacks; few CPU shares, because running nodes come first.
  DOCKER_BUILDKIT=0 timeout 3600 docker build --network host --cpu-shares 128 --force-rm --label "hvdctl.lab.inputs=$inputs" "$@" \
    -t "$image" "$directory" >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "$image could not be built" "the whole log: $log"
  }
  # Removes the image that it replaces, unless that is in use.
  [ -z "$before" ] || [ "$before" = "$(image_id "$image")" ] || docker rmi "$before" >/dev/null 2>&1 || true
  say "built $image in $((SECONDS - begun)) s"
}

image_id() { docker image inspect --format '{{.Id}}' "$@" 2>/dev/null; } # IMAGE…

image_ensure_horovod() { # latest|tensorflow|quick|strange|modern|modern-frameworks
  case $1 in
  latest) image_ensure "$LAB_IMAGE:latest" "$LAB_SCRIPTS/image" ;;
  # The base is an argument, so that the image is rebuilt when it changes.
  quick) image_ensure "$LAB_IMAGE:quick" "$LAB_SCRIPTS/image/quick" --build-arg "BASE=$(image_id "$LAB_IMAGE:latest")" ;;
  strange) image_ensure "$LAB_IMAGE:strange" "$LAB_SCRIPTS/image/strange" --build-arg "BASE=$(image_id "$LAB_IMAGE:quick")" ;;
  tensorflow) image_ensure "$LAB_IMAGE:tensorflow" "$LAB_SCRIPTS/image" --build-arg TENSORFLOW=1 ;;
  modern) image_ensure "$LAB_IMAGE:modern" "$LAB_SCRIPTS/image/modern" ;;
  modern-frameworks) image_ensure "$LAB_IMAGE:modern-frameworks" "$LAB_SCRIPTS/image/modern" --build-arg FRAMEWORKS=1 ;;
  esac
}

image_ensure_node() { # SUITE[-podman|-none|-slurm][-uutils]
  local suite=${1%%-*}
  local base=debian:$suite
  local -a arguments=()
  case $1 in
  *-podman*) arguments+=(--build-arg ENGINE=podman) ;;
  # Only Slurm is asked of such a machine.
  bullseye-slurm*) arguments+=(--build-arg ENGINE=slurm) ;;
  # What the ranks of such a machine need is the machine's own: that of the image which this suite has.
  *-none* | *-slurm*)
    base=$(if [ "$suite" = trixie ]; then echo modern; else echo latest; fi)
    image_ensure_horovod "$base"
    base=$LAB_IMAGE:$base
    arguments+=(--build-arg "ENGINE=$(case $1 in *-slurm*) echo slurm ;; *) echo none ;; esac)" --build-arg "BASE_ID=$(image_id "$base")") ;;
  esac
  arguments+=(--build-arg "SUITE=$suite" --build-arg "BASE=$base")
  if [[ $1 = *-uutils ]]; then arguments+=(--build-arg UUTILS=1); fi
  image_ensure "hvdctl-lab/node:$1" "$LAB_SCRIPTS/lab.d/node" "${arguments[@]}"
}

# Builds an image from a Dockerfile on standard input, which may begin after its FROM line, and loads it into these nodes.
image_derive() { # IMAGE NODE…
  local -r image=$1
  local dockerfile node failed=0
  local -a jobs=()
  shift
  dockerfile=$(cat)
  grep -qi '^FROM ' <<<"$dockerfile" || dockerfile="FROM $LAB_IMAGE:latest"$'\n'$dockerfile
  DOCKER_BUILDKIT=0 docker build --network host --force-rm --label "$LAB_LABEL" -t "$image" - <<<"$dockerfile" >&2 || die "$image could not be built"
  for node; do
    case $(docker exec "$(node_container "$node")" printenv ENGINE) in none | slurm) continue ;; esac
    docker save "$image" | timeout 600 docker exec -i "$(node_container "$node")" node-engine run load -q >/dev/null &
    jobs+=($!)
  done
  for node in "${jobs[@]}"; do wait "$node" || failed=1; done
  [ "$failed" = 0 ] || die "$image could not be loaded into every node"
}
