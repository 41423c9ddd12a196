# Reads what identifies the system of this node. Prepended to ledger/read.sh and ledger/append.sh.
# shellcheck disable=SC2034 # the scripts that follow use them
LC_ALL=C
export LC_ALL
now=$(date +%s) || exit
# without characters that mean something in JSON or in a pattern; a node without /proc or a driver has none
host=$(uname -n | tr -cd 'A-Za-z0-9._-')
boot=$(tr -cd 'A-Za-z0-9-' 2>/dev/null </proc/sys/kernel/random/boot_id) || boot=
up=0
read -r up _ 2>/dev/null </proc/uptime || up=0
booted=$((now - ${up%%.*}))
driver=$(tr -cd 'A-Za-z0-9._-' 2>/dev/null </sys/module/nvidia/version) || driver=
