# Prepended to the scripts that write key files. Writes a temporary file, flushes it and renames it over the old one: a reader sees the
# old or the new file, never a part. A link is replaced and not followed, and a directory is an error.
put() { # MODE NAME BASE64
  temporary=".$2.hvdctl.$$"
  trap 'rm -f "$temporary"' EXIT
  printf '%s' "$3" | base64 -d >"$temporary"
  chmod "$1" "$temporary"
  chown "$(id -u):$(id -g)" "$temporary"
  sync "$temporary"
  mv -fT "$temporary" "$2"
}
# flushes the names in this directory; some file systems can do that only for all files
flush() { sync . 2>/dev/null || sync; }
