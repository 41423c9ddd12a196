# Writes files to a pool: a reader sees the old or the new content of each, never a part. Appended to pool/enter.sh. Variables: path,
# files ("NAME BASE64" a line).
# of a publication of this login that was killed
find . ! -name . -prune -name '.hvdctl.??????' -type f -user "$(id -u)" -mmin +60 -exec rm -f '{}' + 2>/dev/null || :
temporary=
trap '[ -z "$temporary" ] || rm -f "$temporary"' EXIT
trap 'exit 1' HUP INT TERM
failed=0
while read -r name text; do
  [ -n "$name" ] || continue
  if [ -d "$name" ]; then
    echo "$path/$name is a directory" >&2
    failed=1
    continue
  fi
  # a name that no other member can foresee
  made=$(mktemp ./.hvdctl.XXXXXX 2>&1) || {
    echo "${made##*: }: $path" >&2
    exit 1
  }
  temporary=$made
  printf '%s' "$text" | base64 -d >"$temporary"
  chmod 644 "$temporary"
  # otherwise a file may be there after a power failure, and its content not. Some have no argument, and write all
  sync "$temporary" 2>/dev/null || sync
  # a file of another member may have its name, where only its owner may replace it
  mv -f "$temporary" "$name" || {
    failed=1
    rm -f "$temporary"
  }
  temporary=
done <<END
$files
END
exit "$failed"
