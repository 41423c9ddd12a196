# Prints the round trip from this node to others, "NUMBER MICROSECONDS" a line, "NUMBER -" if it cannot connect. Exits with 127 if there is
# no Python. Variables: program (in Python), targets ("NUMBER HOST PORT" a line), seconds (for which it may work).
set -eu
if ! command -v python3 >/dev/null; then
  echo "python3: not found" >&2
  exit 127
fi
printf '%s\n' "$targets" | python3 -I -c "$program" "$seconds"
