# Prepended to scripts that look for data: ends them if there are none on this node. Arguments: those of upload/common.sh.
[ -d "$1" ] || exit 0
