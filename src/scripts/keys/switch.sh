# Appended to keys/put_file.sh and keys/lock.sh. Puts the staged pair in place: NAME.next becomes NAME, the pair of another type is removed,
# NAME.next.pub becomes NAME.pub. Variables: ssh_dir, new (its NAME), public (its line, without a newline), old (the other pair's name,
# or empty). If it is interrupted, running it again finishes it; in between there is always a private key that every node accepts.
main() {
  set -eu
  cd "$ssh_dir"
  alone
  [ -f "$new.next.pub" ] || return 0
  if [ "$(cat "$new.next.pub")" != "$public" ]; then
    echo "another hvdctl command has staged a different pair meanwhile" >&2
    return 1
  fi
  if [ -f "$new.next" ]; then
    # ssh trusts a .pub next to a private key, and would offer the old one; without it, ssh reads the private key
    rm -f "./$new.pub"
    flush
    mv -f "$new.next" "$new"
    flush
  elif [ ! -f "$new" ] || [ -f "$new.pub" ]; then
    # neither staged nor in place: the old pair is the only one, and stays
    echo "$new.next is missing" >&2
    return 1
  fi
  if [ -n "$old" ]; then
    # the public half last: it shows that the private one is ours
    rm -f "./$old"
    flush
    rm -f "./$old.pub"
  fi
  mv -f "$new.next.pub" "$new.pub"
  flush
}

# the block runs completely or not at all, even if the connection breaks
main
