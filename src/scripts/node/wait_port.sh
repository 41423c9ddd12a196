# Waits until something listens on a port of one of this node's addresses, or the time is over. Variables: listener
# (ADDRESS:PORT), seconds.
# `ss` shows a listener at once and costs nothing; the launcher's own login checks that it is sshd.
end=$(($(date +%s) + seconds))
until ss -Hltn src "$listener" | grep -q .; do
  [ "$(date +%s)" -lt "$end" ] || exit 1
  sleep 0.05
done
