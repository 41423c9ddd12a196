# Prints the key with which the daemons of the cluster's own Slurm know one another, in base64; makes it if there is none. Variables:
# directory.
set -eu
umask 077
mkdir -p "${directory%/*}" "$directory"
[ -s "$directory/munge.key" ] || {
  head -c 128 /dev/urandom | base64 -w 0 >"$directory/.key.new"
  mv -fT -- "$directory/.key.new" "$directory/munge.key"
}
cat "$directory/munge.key"
