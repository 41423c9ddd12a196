# Prepended to the scripts that write key files. Writes a temporary file, flushes it and renames it over the old one: a reader sees the
# old or the new file, never a part. A link is replaced and not followed, and a directory is an error.
put() { # MODE NAME BASE64
  new=".$2.hvdctl.$$"
  trap 'rm -f "$new"' EXIT
  printf '%s' "$3" | base64 -d >"$new"
  chmod "$1" "$new"
  chown 0:0 "$new"
  sync "$new"
  mv -fT "$new" "$2"
}
# flushes the names in this directory; some file systems can do that only for all files
flush() { sync . 2>/dev/null || sync; }
