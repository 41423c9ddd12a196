# Logs in from this worker to others with the cluster's key. Runs in the container. Variables: key (the private key), known_hosts,
# targets ("INDEX ADDRESS USER" a line), port, limit (seconds for one login), at_once, whole (seconds for all). Prints for
# each target INDEX, exit code and the end of ssh's messages, with a tab for each newline.
# Only the master has the key as a file. Here it is passed from this shell's memory (printf is a builtin) to an agent that ends with
# this script, and in any case after `whole`.
set -u
umask 077
set_aside || :
dir=$(mktemp -d /tmp/hvdctl-reach.XXXXXX) || exit 1
agent=
leave() {
  trap '' HUP INT TERM
  [ -z "$agent" ] || kill "$agent" 2>/dev/null
  wait
  rm -rf "$dir"
}
trap leave EXIT
trap 'exit 1' HUP INT TERM

for program in ssh ssh-add ssh-agent timeout; do
  command -v "$program" >/dev/null || { echo "$program: not found in the image" >&2; exit 127; }
done
export SSH_AUTH_SOCK="$dir/agent"
timeout -k 1 "$whole" ssh-agent -D -a "$SSH_AUTH_SOCK" >/dev/null 2>"$dir/messages" &
agent=$!
# its socket is there a moment before it listens; with exit code 1 it answers and has no keys
until ssh-add -l >/dev/null 2>&1 || [ "$?" = 1 ]; do
  kill -0 "$agent" 2>/dev/null || { cat "$dir/messages" >&2; exit 1; }
  sleep 0.01
done
printf '%s\n' "$key" | ssh-add -q -t "$whole" - 2>"$dir/messages" || { cat "$dir/messages" >&2; exit 1; }
unset key

try() { # INDEX ADDRESS USER
  timeout -k 1 "$((limit + 2))" ssh -n -T -F /dev/null -l "$3" -p "$port" -o BatchMode=yes -o ConnectTimeout="$limit" \
    -o PreferredAuthentications=publickey -o IdentityFile=none -o StrictHostKeyChecking=yes -o UpdateHostKeys=no \
    -o UserKnownHostsFile="$known_hosts" -o GlobalKnownHostsFile=/dev/null -o CheckHostIP=no -- "$2" true \
    >/dev/null 2>"$dir/$1"
  printf '%s %s %s\n' "$1" "$?" "$(tail -c 1000 "$dir/$1" | tr '\r' '\t' | tr '\n' '\t')"
}
# a subshell of its own: its `wait` is for the logins and not for the agent
printf '%s' "$targets" | {
  n=0
  while read -r index address user; do
    try "$index" "$address" "$user" &
    n=$((n + 1))
    [ "$((n % at_once))" != 0 ] || wait
  done
  wait
}
