# Waits until something answers as an sshd on a port of this node, or the time is over. Wants: port, seconds.
# `ss` shows a listener at once and costs nothing; that the banner is sshd's is seen by the launcher's own log-in.
end=$(($(date +%s) + seconds))
until ss -Hltn "sport = :$port" | grep -q .; do
  [ "$(date +%s)" -lt "$end" ] || exit 1
  sleep 0.05
done
