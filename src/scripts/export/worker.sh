PATH=$PATH:/usr/sbin:/sbin
# a signal to all processes but sshd, whose sessions have the output of ranks; fails if there is none
send() {
  found=
  for one in /proc/[0-9]*; do
    { read -r name <"$one/comm"; } 2>/dev/null || continue
    case $one:$name in /proc/1:* | *:sshd*) ;; *) kill "-$1" "${one#/proc/}" 2>/dev/null && found=1 ;; esac
  done
  [ -n "$found" ]
}
trap 'trap "" TERM; send TERM; while send 0; do sleep 0.2; done; exit 143' TERM
mkdir -p /run/sshd && ssh-keygen -A || exit
"$(command -v sshd)" -De -f /dev/null -p 22 -o StrictModes=no -o PermitRootLogin=prohibit-password -o UsePAM=no \
  -o MaxStartups=200:30:400 -o UseDNS=no -o ClientAliveInterval=15 -o ClientAliveCountMax=3 \
  -o "SetEnv=PATH=$PATH${LD_LIBRARY_PATH:+ LD_LIBRARY_PATH=$LD_LIBRARY_PATH}" &
wait $!
