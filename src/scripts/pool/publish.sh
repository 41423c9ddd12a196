# Writes files to a pool: a reader sees the old or the new content of each, never a part. Variables: path, files ("NAME BASE64" a line).
set -eu
if [ ! -d "$path" ]; then
  echo "there is no directory $path" >&2
  exit 1
fi
cd "$path"
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
  temporary=$(mktemp ./.hvdctl.XXXXXX)
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
