# Writes files to a pool: a reader sees the old or the new content of each, never a part. Appended to pool/enter.sh. Variables: path,
# files ("NAME BASE64" a line).
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
