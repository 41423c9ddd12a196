# Adds entries to this node's ledger, and one of the system if its boot or driver is not that of the latest such entry. Appended to
# node/close.sh, node/permissions.sh and ledger/system.sh. Variables: jobs_dir, cluster, entries (one a line), most (bytes). A line that an interrupted command has left
# unfinished takes no other one with it. If the file would become larger than `most`, its older half goes.
set -eu
umask 077
# nothing is created on a node that is not set up
[ -d "${jobs_dir%/*}/" ] || exit 0
refuse_exposed "$jobs_dir"
mkdir -p "$jobs_dir"
file=$jobs_dir/.ledger@$cluster
if [ -h "$file" ] || { [ -e "$file" ] && [ ! -f "$file" ]; }; then
  echo "$file: not a regular file" >&2
  exit 1
fi
command -v flock >/dev/null || {
  echo "flock: not found (util-linux)" >&2
  exit 127
}
# a file of its own, because the ledger may be replaced; and one that only root can open, because whoever opens a file can lock it
lock=$jobs_dir/.ledger.lock@$cluster
[ ! -h "$lock" ] || rm -f "$lock"
exec 9>>"$lock"
flock -w 10 9 || {
  [ $? != 1 ] || echo "another hvdctl command is writing the ledger" >&2
  exit 1
}
added=
stamp="{\"format\":1,\"time\":$now,\"host\":\"$host\","
if [ -n "$boot" ]; then
  system="\"what\":\"system\",\"boot\":\"$boot\",\"driver\":\"$driver\""
  latest=
  if [ -e "$file" ]; then latest=$(sed -n "/\"host\":\"$host\",\"what\":\"system\",.*}\$/p" "$file" | tail -n 1); fi
  case $latest in
  *"$system"*) ;;
  *)
    added="$stamp$system,\"booted\":$booted}
"
    ;;
  esac
fi
if [ -n "$entries" ]; then
  added=$added$(printf '%s\n' "$entries" | sed "/^{/!d; s/^{/$stamp/")
else
  added=${added%?}
fi
[ -n "$added" ] || exit 0
size=0
if [ -e "$file" ]; then size=$(stat -c %s "$file"); fi
if [ "$size" -gt 0 ] && [ "$((size + ${#added} + 2))" -gt "$most" ]; then
  new=$jobs_dir/.ledger.new@$cluster
  trap 'rm -f "$new"' EXIT
  # the first line may be a part of one
  rm -f "$new"
  tail -c "$((most / 2))" "$file" | (set -C && sed 1d >"$new")
  sync "$new"
  mv -fT "$new" "$file"
fi
# what a power failure leaves may end with a NUL, which a shell drops
if [ -s "$file" ] && [ "$(tail -c 1 "$file" | tr '\0' x; echo .)" != "
." ]; then
  added="
$added"
fi
# cat says why, as a shell does not
printf '%s\n' "$added" | cat >>"$file"
sync "$file"
