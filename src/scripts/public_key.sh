# Prints the public half of a private key whose .pub file is missing. Variables: ssh_dir, key_name.
set -eu
exec ssh-keygen -y -f "$ssh_dir/$key_name"
