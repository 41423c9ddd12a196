# Prints the lines of sshd's configuration that may forbid forwarded ports, each behind its file and number. Changes nothing.
for file in /etc/ssh/sshd_config /etc/ssh/sshd_config.d/*.conf; do
  [ ! -f "$file" ] || grep -HniE '^[[:space:]]*(AllowTcpForwarding|DisableForwarding|PermitListen)[[:space:]=]' "$file"
done
exit 0
