# The main process of the container of an encrypted network: runs the agent, and starts it again when it ends. $1: the directory of
# the network
directory=$1
agent=
finish() {
  trap '' TERM INT
  if [ -n "$agent" ]; then
    kill "$agent" 2>/dev/null
    wait "$agent"
  fi
  # with it ends wireguard-go
  interface=$(sed -n 's/.*"interface": *"\(hmesh[a-z0-9_-]*\)".*/\1/p' "$directory/network.json" 2>/dev/null)
  [ -z "$interface" ] || ip link del "$interface" 2>/dev/null
  exit 0
}
trap finish TERM INT
while :; do
  python3 -B "$directory/run/agent.py" "$directory" &
  agent=$!
  # a signal ends `wait`, not the agent
  wait "$agent"
  sleep 1 &
  wait $!
done
