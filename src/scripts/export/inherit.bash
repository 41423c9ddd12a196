# horovodrun writes its environment into command lines, which every user of a node can read: it gets what it needs itself, and the ranks get
# the rest from a file, or from the step on the other nodes
(
  umask 077
  export -n SHELLOPTS BASHOPTS UID EUID PPID 2>/dev/null
  { export -p && export -pf; } >"$hvdctl_programs/environment"
) || exit
hvdctl_own=()
for hvdctl_name in $(compgen -e); do
  case $hvdctl_name in
  INHERITED) hvdctl_own+=("$hvdctl_name=${!hvdctl_name}") ;;
  esac
done
# what horovodrun sets goes before what is in the file
# shellcheck disable=SC2016 # it is the rank's
hvdctl_rank='[ -n "${SLURMD_NODENAME:-}" ] || { hvdctl_own=$(export -p) && . "$0" && eval "$hvdctl_own" || exit; }; unset hvdctl_own; exec "$@"'
