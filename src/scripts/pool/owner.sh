# Prints the public key of the node's owner, as root has written it there (pool/claim.sh), or says why it is not to be believed. Variables:
# file.
set -eu
LC_ALL=C
export LC_ALL
if [ ! -e "$file" ]; then
  echo "there is no $file" >&2
  exit 1
fi
# as sshd is strict with its own files: nobody but root may have written it, or put another one in its place. A link has mode 777
place=$file
while [ -n "$place" ]; do
  writable=$(find "$place" -prune ! '(' -user 0 '(' ! -perm /022 -o -type d -perm -1000 ')' ')')
  if [ -n "$writable" ]; then
    echo "users other than root can change $place" >&2
    exit 1
  fi
  place=${place%/*}
done
head -c 4096 -- "$file"
