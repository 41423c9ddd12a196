image=$1 cluster=$2 process=$3 engine=$4 host=$5; shift 5
[ -z "$host" ] || [ "$engine" = podman ] || export DOCKER_HOST="$host"
unset CONTAINER_HOST CONTAINER_CONNECTION CONTAINER_SSHKEY
unset CONTAINERS_CONF CONTAINERS_CONF_OVERRIDE CONTAINERS_STORAGE_CONF STORAGE_DRIVER STORAGE_OPTS
exec "$engine" run --rm -i --pull never --label "hvdctl.cluster=$cluster" --label hvdctl.role=helper \
  --label "hvdctl.process=$process" \
  --pid host --network host --uts host --userns host --cap-add SYS_PTRACE --cap-drop NET_RAW --security-opt apparmor=unconfined \
  --security-opt seccomp=unconfined --security-opt label=disable --log-driver none -v /:/host \
  --env NVIDIA_VISIBLE_DEVICES=void --entrypoint chroot \
  "$image" /host env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "HVDCTL_ADDRESS=$a" "HVDCTL_LOGIN=$HVDCTL_LOGIN" "$@"
