# Becomes a program in the environment of a process. Arguments: the directory of the process, its name or id, and the program's.
hvdctl_directory=$1
# as process/common.sh
case $(stat -c '%u %A' -- "${hvdctl_directory%/run/*}") in
"$(id -u) d"????-??-*) ;;
*)
  echo "hvdctl: ${hvdctl_directory%/run/*} is not a directory of $(id -un), or others can change it" >&2
  exit 1
  ;;
esac
read -r hvdctl_id <"$hvdctl_directory/id" || exit
case $2 in
"$hvdctl_id" | "${hvdctl_id%@*}") ;;
*)
  echo "hvdctl: there is no $2" >&2
  exit 1
  ;;
esac
shift 2
# of a process that has just been started
hvdctl_tries=0
until [ -e "$hvdctl_directory/environment" ]; do
  hvdctl_tries=$((hvdctl_tries + 1))
  if [ "$hvdctl_tries" -gt 600 ]; then
    echo "hvdctl: its environment is not set up: $(tail -n 5 "$hvdctl_directory/output")" >&2
    exit 1
  fi
  sleep 0.1
done
# shellcheck source=/dev/null
. "$hvdctl_directory/environment"
cd -P "$hvdctl_directory/workspace" || exit
exec "$@"
