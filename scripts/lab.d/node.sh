# One machine of the lab: a container with its own sshd and its own Docker Engine or Podman. Sourced, never run.
# shellcheck shell=bash

# What follows is about the selected cluster: the lab itself ('') or one of the pool's pairs (p1, p2 …). Each has a network, nodes
# and files of its own.
cluster_select() { # CLUSTER
  CLUSTER=$1
  NET=hvdctl-lab${CLUSTER:+-$CLUSTER}
  LAB_DIR=$LAB_ROOT/.lab${CLUSTER:+/$CLUSTER}
}

# Selects the cluster of a node that is named as lab_nodes names it.
node_select() { # [PAIR/]NODE
  case $1 in */*) cluster_select "${1%%/*}" ;; *) cluster_select '' ;; esac
}

cluster_select ''

# What machines are like. The options of `scripts/lab up` set it.
NODE_SUITES=(bookworm) # of Debian: the first node's, the second's …; the last is that of all others
NODE_ENGINES=(docker)  # or podman, rootless, none or slurm: the first node's, the second's …; the last is that of all others
NODE_UUTILS=           # -uutils: with coreutils and sudo written in Rust
NODE_NAMES=stock       # what the own name means: 127.0.1.1 (stock), the address (own), nothing (none), the second address (other)
NODE_SECOND=           # a second address: in a network of its own (network), or in the same one (address)
NODE_DAEMON_JSON=      # text of /etc/docker/daemon.json
NODE_ACCOUNTING=       # yes: Slurm keeps accounts of its jobs, in a database on node1
NODE_SITE=             # yes: a Slurm as sites have it
NODE_SHARE=            # DIRECTORY:PATH, a directory of this machine that all nodes have at PATH

node_image() { # NODE
  local -r index=$((${1#node} - 1)) last=$((${#NODE_SUITES[@]} - 1))
  local engine
  engine=-$(node_engine "$1" | sed 's/rootless/podman/')
  printf 'hvdctl-lab/node:%s%s%s\n' "${NODE_SUITES[index < last ? index : last]}" "${engine#-docker}" "$NODE_UUTILS"
}

# The images of the first nodes, without repetitions and what all have in common; those of a pair at least.
node_images() { # COUNT
  local index
  for ((index = 1; index <= ($1 > 2 ? $1 : 2); index++)); do node_image "node$index"; done | sed 's/.*://' | sort -u
}

# The engine of a node: docker, podman, rootless (Podman of the login `own`), none or slurm.
node_engine() { # NODE
  local -r index=$((${1#node} - 1)) last=$((${#NODE_ENGINES[@]} - 1))
  printf '%s\n' "${NODE_ENGINES[index < last ? index : last]}"
}

node_container() { printf 'hvdctl-lab-%s%s\n' "${CLUSTER:+$CLUSTER-}" "$1"; }

# What a nested engine needs. --privileged fails on a machine that itself lacks CAP_SYS_RESOURCE (bit 24); there, all other
# capabilities without confinement are enough.
NODE_FLAGS=(--privileged)
if ! ((0x$(awk '/^CapBnd/ { print $2 }' /proc/self/status) >> 24 & 1)); then
  NODE_FLAGS=(--cap-add=ALL --cap-drop=SYS_RESOURCE --security-opt seccomp=unconfined --security-opt apparmor=unconfined
    --security-opt systempaths=unconfined)
fi
# Shared memory as large as a machine's own, for containers that use it with --ipc=host.
NODE_FLAGS+=(--shm-size=4g --cgroupns=private --tmpfs /run:exec --tmpfs '/tmp:mode=1777,exec')
# For the encrypted network, whose interface a program makes where the kernel has no WireGuard.
if [ -c /dev/net/tun ]; then NODE_FLAGS+=(--device /dev/net/tun); fi
readonly NODE_FLAGS

# The first address range of these that is free; a lab that is up keeps the one it has.
net_ensure() { # NETWORK
  docker network inspect "$1" >/dev/null 2>&1 && return
  local range third
  for range in 172.28 172.29 172.30 192.168 10.228; do
    for third in {100..119}; do
      docker network create --label "$LAB_LABEL" --subnet "$range.$third.0/24" "$1" >/dev/null 2>&1 && return
    done
  done
  die "no address range is free for the network $1"
}

net_remove_all() {
  local network
  for network in $(docker network ls -q --filter "label=$LAB_LABEL"); do docker network rm "$network" >/dev/null; done
}

net_prefix() { docker network inspect --format '{{(index .IPAM.Config 0).Subnet}}' "$1" | sed 's/\.[0-9]*\/.*//'; }

node_address() { printf '%s.%d\n' "$LAB_PREFIX" "$((10 + ${1#node}))"; }

node_second_address() { printf '%s.%d\n' "$LAB_SECOND_PREFIX" "$((10 + ${1#node}))"; }

# The GPUs of a node, one "INDEX UUID" a line: the same at every start, different from node to node.
node_gpus() { # NODE COUNT
  local index
  for ((index = 0; index < $2; index++)); do
    printf '%d GPU-%s\n' "$index" "$(printf 'hvdctl lab %s%s %d' "${CLUSTER:+$CLUSTER/}" "$1" "$index" | md5sum | sed -E 's/^(.{8})(.{4})(.{4})(.{4})(.{12}).*/\1-\2-\3-\4-\5/')"
  done
}

# The lines of a node's /etc/hosts. For the own name, an installer writes 127.0.1.1 with the full name first.
node_hosts() { # NODE COUNT
  local index
  case $NODE_NAMES in
  stock) printf '127.0.1.1 %s.example.org %s\n' "$1" "$1" ;;
  own) printf '%s %s\n' "$(node_address "$1")" "$1" ;;
  other) printf '%s %s\n' "$(node_second_address "$1")" "$1" ;;
  none) return ;;
  esac
  for ((index = 1; index <= $2; index++)); do
    [ "node$index" = "$1" ] || printf '%s node%d\n' "$(node_address "node$index")" "$index"
  done
}

# Prints a hash of what a node is made of. A node is recreated when it differs.
node_spec() { # NODE GPUS
  {
    image_id "$(node_image "$1")"
    seed_content
    node_engine "$1"
    printf '%s\n' "$(node_address "$1")" "${NODE_FLAGS[*]}" "$NODE_SECOND" "$NODE_DAEMON_JSON" "$NODE_SHARE" "$NODE_ACCOUNTING" "$NODE_SITE"
    node_gpus "$1" "$2"
    cat "$LAB_KEY.pub" "$LAB_DIR/hostkeys/$1.pub" "$LAB_PASSWORDS"
  } | sha256sum | cut -c1-32
}

# Makes and starts a node; prints nothing.
node_create() { # NODE GPUS SPEC HOSTS
  local -r node=$1 gpus=$2 spec=$3 hosts=$4
  local -r name=$(node_container "$node")
  local stage user data=/var/lib/docker
  docker rm -f "$name" >/dev/null 2>&1 || true
  case $(node_engine "$node") in
  podman | rootless)
    data=/var/lib/containers
    docker volume rm -f "$name" >/dev/null && docker volume create --label "$LAB_LABEL" "$name" >/dev/null || return 1 ;;
  docker) seed_clone "$name" || { echo "its engine's data could not be made from the seed"; return 1; } ;;
  none | slurm) docker volume rm -f "$name" >/dev/null || return 1; data= ;;
  esac
  docker create --name "$name" -e "HOSTNAME=$node" -e "ENGINE=$(node_engine "$node")" --label "$LAB_LABEL" --label "hvdctl.lab.root=$LAB_ROOT" --label "hvdctl.lab.node=$node" \
    --label "hvdctl.lab.cluster=$CLUSTER" \
    --label "hvdctl.lab.spec=$spec" --network "$NET" --ip "$(node_address "$node")" --stop-timeout 8 "${NODE_FLAGS[@]}" \
    ${data:+-v "$name:$data"} ${NODE_SHARE:+-v "$NODE_SHARE"} "$(node_image "$node")" >/dev/null || return 1
  if [ "$NODE_SECOND" = network ]; then docker network connect --ip "$(node_second_address "$node")" "$NET-second" "$name" || return 1; fi
  stage=$(mktemp -d) || return 1
  install -D -m 600 "$LAB_DIR/hostkeys/$node" "$stage/etc/ssh/ssh_host_ed25519_key"
  for user in workshop asks dock own plain; do
    install -D -m 644 "$LAB_KEY.pub" "$stage/home/$user/.ssh/authorized_keys"
  done
  install -D -m 600 "$LAB_KEY.pub" "$stage/root/.ssh/authorized_keys"
  install -D -m 600 "$LAB_PASSWORDS" "$stage/etc/hvdctl-lab/passwords"
  printf '%s\n' "$hosts" >"$stage/etc/hvdctl-lab/hosts"
  node_gpus "$node" "$gpus" >"$stage/etc/hvdctl-lab/gpus"
  if [ "$NODE_SECOND" = address ]; then node_second_address "$node" >"$stage/etc/hvdctl-lab/second-address"; fi
  if [ -n "$NODE_ACCOUNTING" ]; then touch "$stage/etc/hvdctl-lab/accounting"; fi
  if [ -n "$NODE_SITE" ]; then touch "$stage/etc/hvdctl-lab/site"; fi
  if [ -n "$NODE_DAEMON_JSON" ]; then install -D -m 644 /dev/stdin "$stage/etc/docker/daemon.json" <<<"$NODE_DAEMON_JSON"; fi
  # Only files, so that the directories in the image keep their owners.
  (cd "$stage" && find . -type f -print0 | tar -c --null -T - --owner=0 --group=0) | docker cp - "$name:/" || { rm -rf "$stage"; return 1; }
  rm -rf "$stage"
  docker start "$name" >/dev/null
}

# Brings a node to the desired state; changes nothing if it has it already.
node_ensure() { # NODE GPUS COUNT
  local -r node=$1 gpus=$2
  local -r name=$(node_container "$node")
  local hosts spec is state address
  hosts=$(node_hosts "$node" "$3")
  spec=$(node_spec "$node" "$gpus")
  is=$(docker inspect --format "{{index .Config.Labels \"hvdctl.lab.spec\"}} {{.State.Status}} {{with index .NetworkSettings.Networks \"$NET\"}}{{.IPAMConfig.IPv4Address}}{{end}}" \
    "$name" 2>/dev/null) || is=
  read -r is state address <<<"$is"
  # A node that was created but never started may lack its keys, because its creation was interrupted.
  if [ "$is" != "$spec" ] || [ "$state" = created ]; then
    say "$node: starting a new machine"
    node_create "$node" "$gpus" "$spec" "$hosts" || return 1
  else
    [ "$address" = "$(node_address "$node")" ] || {
      say "$node: connecting it to its network"
      docker network connect --ip "$(node_address "$node")" "$NET" "$name" && docker kill -s HUP "$name" >/dev/null || return 1
    }
    case $state in
    running) ;;
    paused) say "$node: resuming it" && docker unpause "$name" >/dev/null || return 1 ;;
    *) say "$node: starting it" && docker start "$name" >/dev/null || return 1 ;;
    esac
  fi
  node_settle "$name" "$hosts" || {
    echo "its engine does not answer; the engine's log ends:"
    docker exec "$name" sh -c 'tail -n 5 /var/log/dockerd.log /var/log/podman.log 2>/dev/null' || true
    return 1
  }
  # By their inputs, because an engine with containerd's store has other ids.
  if [[ $(node_engine "$node") != @(none|slurm) ]] &&
    [ "$(timeout 20 docker exec "$name" node-engine run image inspect --format "$IMAGE_INPUTS" "${LAB_IMAGES[@]}" 2>/dev/null)" != \
    "$(docker image inspect --format "$IMAGE_INPUTS" "${LAB_IMAGES[@]}")" ]; then
    say "$node: loading the images that it lacks"
    docker save "${LAB_IMAGES[@]}" | timeout 600 docker exec -i "$name" node-engine run load -q >/dev/null || return 1
  fi
  wait_for 15 node_login "$node" || {
    node_login "$node" 2>&1 || true
    echo "workshop cannot log in; recreate the nodes: scripts/lab down && scripts/lab up"
    return 1
  }
}

node_login() { ssh -F "$LAB_DIR/ssh_config" -o BatchMode=yes -o ConnectTimeout=3 "$1" true </dev/null; }

# Writes the other nodes' names to a running node, starts its sshd and its engine if they are down, and waits for the engine.
node_settle() { # CONTAINER HOSTS
  # shellcheck disable=SC2016 # expanded on the node
  timeout 75 docker exec -i "$1" bash -c '
    [ "$1" = "$(cat /etc/hvdctl-lab/hosts)" ] || { printf "%s\n" "$1" >/etc/hvdctl-lab/hosts; kill -HUP 1; }
    for _ in {1..100}; do [ -e /run/node-ready ] && break; sleep 0.1; done
    kill -0 "$(cat /run/sshd.pid 2>/dev/null)" 2>/dev/null || { mkdir -p /run/sshd && /usr/sbin/sshd -E /var/log/sshd.log; }
    for _ in {1..300}; do
      node-engine start
      node-engine answers && exit 0
      sleep 0.1
    done
    exit 1' - "$2"
}

node_remove() { # NODE
  docker rm -f "$(node_container "$1")" >/dev/null 2>&1
  docker volume rm -f "$(node_container "$1")" >/dev/null
}
