# Behind keys_lock.sh. Puts the staged pair in place: NAME.next becomes NAME, the pair of another type goes, NAME.next.pub becomes NAME.pub.
# Wants: ssh_dir, new (its NAME), public (its line, without a newline), old (the other pair's name, or empty). Cut off anywhere, a second job finishes it; in
# between there is always a private key that every node lets in.
main() {
  set -eu
  cd "$ssh_dir"
  alone
  [ -f "$new.next.pub" ] || return 0
  if [ "$(cat "$new.next.pub")" != "$public" ]; then
    echo "another pair than the one that is let in was staged meanwhile" >&2
    return 1
  fi
  if [ -f "$new.next" ]; then
    # ssh believes a .pub beside a private key, and would offer the old one; without it, the private key tells
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
    # the public half last: it says that the private one is ours
    rm -f "./$old"
    flush
    rm -f "./$old.pub"
  fi
  mv -f "$new.next.pub" "$new.pub"
  flush
}

flush() { sync . 2>/dev/null || sync; }

# as a whole or not at all, even if what sends this is cut off
main
