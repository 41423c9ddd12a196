# Brings the key folder to the state that the contract names. Wants: ssh_dir, puts ("MODE NAME BASE64" a line), removes
# (a name a line). Each file is written beside its place, flushed, and renamed over it: a reader sees the old or the
# new one, never a part. Secrets come in a variable of this script, which came over standard input: no process of this
# node ever has them among its arguments (printf is the shell's own).
set -eu
(umask 022 && mkdir -p "${ssh_dir%/*}")
umask 077
mkdir -p "$ssh_dir"
chown 0:0 "$ssh_dir"
chmod 700 "$ssh_dir"
cd "$ssh_dir"

printf '%s' "$puts" | while read -r mode name text; do
  new=".$name.hvdctl.$$"
  trap 'rm -f "$new"' EXIT
  printf '%s' "$text" | base64 -d >"$new"
  chmod "$mode" "$new"
  chown 0:0 "$new"
  sync "$new" 2>/dev/null || sync
  mv -f "$new" "$name"
done
printf '%s' "$removes" | while read -r name; do rm -f "./$name"; done

for name in id_rsa id_ed25519 authorized_keys ssh_host_ed25519_key; do
  [ ! -f "$name" ] || { chown 0:0 "$name" && chmod 600 "$name"; }
done
for name in id_rsa.pub id_ed25519.pub ssh_host_ed25519_key.pub known_hosts; do
  [ ! -f "$name" ] || { chown 0:0 "$name" && chmod 644 "$name"; }
done
