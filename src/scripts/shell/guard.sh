# Runs in a container next to a shell. When standard input is closed, sends SIGHUP to the shell's processes, as a closed terminal does:
# Docker leaves a shell running when its terminal is gone. Argument: the value of HVDCTL_SHELL.

# bash ends `read` after TMOUT seconds, which an image may set
unset TMOUT
echo ready
while read -r _; do :; done
# what this cannot end keeps running, as it would without this script
grep -lzxF -e "HVDCTL_SHELL=$1" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | while read -r pid; do
  kill -HUP "$pid" 2>/dev/null
done
