# Becomes a program in the environment of a process. Arguments: the directory of the process, its name or id, and the program's.
directory=$1
# as process/common.sh
case $(stat -c '%u %A' -- "${directory%/run/*}") in
"$(id -u) d"????-??-*) ;;
*)
  echo "hvdctl: ${directory%/run/*} is not a directory of $(id -un), or others can change it" >&2
  exit 1
  ;;
esac
read -r id <"$directory/id" || exit
case $2 in
"$id" | "${id%@*}") ;;
*)
  echo "hvdctl: there is no $2" >&2
  exit 1
  ;;
esac
shift 2
# of a process that has just been started
tries=0
until [ -e "$directory/environment" ]; do
  tries=$((tries + 1))
  if [ "$tries" -gt 600 ]; then
    echo "hvdctl: its environment is not set up: $(tail -n 5 "$directory/output")" >&2
    exit 1
  fi
  sleep 0.1
done
# shellcheck source=/dev/null
. "$directory/environment"
cd -P "$directory/workspace" || exit
exec "$@"
