PATH=$PATH:/usr/sbin:/sbin
# a signal to the program of each rank, but not to what that has started and may need to save, nor to sshd and Open MPI's daemons, which
# pass output on; fails if no rank is left
send() {
  found=
  for one in /proc/[0-9]*; do
    { read -r name <"$one/comm"; } 2>/dev/null || continue
    case $one:$name in /proc/1:* | *:sshd* | *:orted | *:prted) continue ;; esac
    found=1
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "$one/status" 2>/dev/null)
    { read -r name <"/proc/$parent/comm"; } 2>/dev/null || continue
    case $name in sshd* | *sh | orted | prted) kill "-$1" "${one#/proc/}" 2>/dev/null ;; esac
  done
  [ -n "$found" ]
}
trap 'trap "" TERM; send TERM; while send 0; do sleep 0.2; done; exit 143' TERM
env -u LD_LIBRARY_PATH -u LD_PRELOAD -u LD_AUDIT -u OPENSSL_CONF ssh-keygen -A || exit
sh -c START "$(command -v sshd)" -De -f /dev/null -p 22 -o AuthorizedKeysFile=/root/.ssh/authorized_keys -o StrictModes=no \
  -o PermitRootLogin=prohibit-password -o UsePAM=no -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no \
  -o MaxStartups=200:30:400 -o UseDNS=no -o ClientAliveInterval=15 -o ClientAliveCountMax=3 &
wait $!
