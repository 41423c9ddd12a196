# Appended to keys/put_file.sh and keys/lock.sh. Writes a new key pair next to the current one: NAME.next, then NAME.next.pub. Variables:
# ssh_dir, name, private, public (both in base64). Prints "NAME PUBLIC" of the pair that is staged afterwards: one that was staged
# meanwhile is kept. The private half is sent in a variable over standard input and is an argument only of printf, a builtin.
main() {
  set -eu
  umask 077
  cd "$ssh_dir"
  # two pairs must not mix
  alone
  for there in id_rsa id_ed25519; do
    # staged, or being put in place at this moment; a public half alone is no pair
    if [ -f "$there.next.pub" ] && { [ -f "$there.next" ] || { [ -f "$there" ] && [ ! -f "$there.pub" ]; }; }; then
      staged=$(cat "$there.next.pub")
      printf '%s %s\n' "$there" "$staged"
      return 0
    fi
  done
  rm -f ./id_rsa.next ./id_rsa.next.pub ./id_ed25519.next ./id_ed25519.next.pub
  put 600 "$name.next" "$private"
  flush
  put 644 "$name.next.pub" "$public"
  flush
  printf '%s %s\n' "$name" "$(cat "$name.next.pub")"
}

# the block runs completely or not at all, even if the connection breaks
main
