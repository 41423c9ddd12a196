# Lets root say whose node this is, where pool pick reads it, and prints the public host keys of sshd, "TYPE BASE64" a line. Variables: file,
# key (the owner's, a line).
set -eu
LC_ALL=C
export LC_ALL
umask 022
directory=${file%/*}
mkdir -p -- "$directory"
if [ -h "$directory" ]; then
  echo "$directory is a link" >&2
  exit 1
fi
chown 0:0 -- "$directory"
chmod 755 -- "$directory"
# who has root for a while must not take the node over
if [ -s "$file" ] && ! { read -r type text _ && [ "$type $text" = "$key" ]; } <"$file"; then
  echo "$file has another owner's key; if the node is yours, remove that file" >&2
  exit 1
fi
# only root writes there; one that was cut off is replaced. Until it is in its place, no one else reads or locks it
rm -f -- "$file.new"
(umask 077 && printf '%s\n' "$key" >"$file.new")
sync -- "$file.new"
mv -fT -- "$file.new" "$file"
chmod 644 -- "$file"

# without its options, or where it does not start, those that sshd has by default
files=$(sshd -T 2>/dev/null </dev/null | sed -n 's/^hostkey //p')
[ -n "$files" ] || files=$(printf '%s\n' /etc/ssh/ssh_host_ed25519_key /etc/ssh/ssh_host_ecdsa_key /etc/ssh/ssh_host_rsa_key)
printf '%s\n' "$files" | while IFS= read -r private; do
  if [ -f "$private.pub" ]; then
    head -c 4096 -- "$private.pub" | sed -n '1s/^\([^ ]* [^ ]*\).*/\1/p'
  elif [ -f "$private" ]; then
    ssh-keygen -y -f "$private" </dev/null | cut -d' ' -f1,2
  fi
done
