# The main process of a container hmesh: runs the agent of the encrypted network, and starts it again when it ends.
# $1: the directory of the network
agent=
finish() {
  trap '' TERM INT
  if [ -n "$agent" ]; then
    kill "$agent" 2>/dev/null
    wait "$agent"
  fi
  # with it ends wireguard-go
  ip link del hmesh 2>/dev/null
  exit 0
}
trap finish TERM INT
while :; do
  python3 -B "$1/run/agent.py" "$1" &
  agent=$!
  # a signal ends `wait`, not the agent
  wait "$agent"
  sleep 1 &
  wait $!
done
