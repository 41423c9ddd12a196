# Appended to keys/put_file.sh and keys/lock.sh. Brings the key directory to the desired state. Variables: ssh_dir, puts ("MODE NAME
# BASE64" a line), removes (a name a line), observed ("NAME SHA256" a line: the texts that these were computed from, as
# node/facts.sh reads them). Secrets are in a variable of this script, which is sent over standard input: they are never
# arguments of a process on this node (printf is a builtin).
main() {
  set -eu
  (umask 022 && mkdir -p "${ssh_dir%/*}")
  umask 077
  mkdir -p "$ssh_dir"
  cd "$ssh_dir"
  chown "$(id -u):$(id -g)" .
  alone

  # checked first: changes since the observation must not be overwritten
  printf '%s' "$observed" | while read -r name sum; do
    case $(text "$name" | sha256sum) in
    "$sum "*) ;;
    *)
      echo "$name was changed by another program meanwhile; run the same command again" >&2
      exit 1
      ;;
    esac
  done
  printf '%s' "$puts" | while read -r mode name text; do
    put "$mode" "$name" "$text"
  done
  printf '%s' "$removes" | while read -r name; do rm -f "./$name"; done
  flush

  for name in id_rsa id_ed25519 id_rsa.next id_ed25519.next authorized_keys ssh_host_ed25519_key; do own 600 "$name"; done
  for name in id_rsa.pub id_ed25519.pub id_rsa.next.pub id_ed25519.next.pub ssh_host_ed25519_key.pub known_hosts; do
    own 644 "$name"
  done
}

# Makes a file root's (or that of a login without root), with this mode. A link is replaced by a copy of its file: the containers mount only this directory, and
# hvdctl must not change a file elsewhere.
own() { # MODE NAME
  [ -f "$2" ] || return 0
  if [ -h "$2" ]; then
    cp -- "$2" ".$2.hvdctl.$$"
    mv -fT ".$2.hvdctl.$$" "$2"
  fi
  chown "$(id -u):$(id -g)" "$2"
  chmod "$1" "$2"
}

# a file's lines as node/facts.sh reads them, and none where there is no file
text() {
  [ -f "$1" ] || return 0
  LC_ALL=C awk '{ print }' "./$1"
}

# the block runs completely or not at all, even if the connection breaks
main
