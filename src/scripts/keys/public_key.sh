# Prints the public half of a private key whose .pub file is missing. Variables: ssh_dir, key_name.
set -eu
# access/access.sh does not require it, because nothing else does
command -v ssh-keygen >/dev/null || {
  echo "ssh-keygen: not found (openssh-client)" >&2
  exit 127
}
exec ssh-keygen -y -f "$ssh_dir/$key_name"
