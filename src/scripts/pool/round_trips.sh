# Prints "machine ID", which is the same for all logins to one machine or container (empty if it is not known), and the round trip from
# this node to others, "NUMBER MICROSECONDS" a line, "NUMBER -" if it cannot connect. Variables: program (in Python), targets ("NUMBER
# HOST PORT" a line).
set -eu
if ! command -v python3 >/dev/null; then
  echo "there is no python3" >&2
  exit 1
fi
# containers of one machine have its boot, and networks of their own
boot=$(tr -cd 'A-Za-z0-9-' 2>/dev/null </proc/sys/kernel/random/boot_id) || boot=
network=$(readlink /proc/self/ns/net 2>/dev/null) || network=
if [ -n "$boot" ] && [ -n "$network" ]; then echo "machine $boot $network"; else echo "machine "; fi
printf '%s\n' "$targets" | python3 -I -c "$program"
