# The beginning of the scripts that write key files. A file is written beside its place, flushed, and renamed over the old one: a
# reader sees the old or the new file, never a part. A link is replaced and not followed, and a directory is an error.
put() { # MODE NAME BASE64
  new=".$2.hvdctl.$$"
  trap 'rm -f "$new"' EXIT
  printf '%s' "$3" | base64 -d >"$new"
  chmod "$1" "$new"
  chown 0:0 "$new"
  sync "$new"
  mv -fT "$new" "$2"
}
# writes the names in this directory to the disk; some file systems can only do that for all files
flush() { sync . 2>/dev/null || sync; }
