# Follows fetch/below.sh. Hashes files. Argument: the directory; standard input: names that begin with `./`, each ended by NUL. Prints
# "HASH *./NAME", ended by NUL, for regular files that can be read; standard error names the others.

# shellcheck disable=SC2016 # it is the shell's of `below`
below "$1" '{ b2sum -l 256 -bz -- "$@" 2>&1 >&3 | sed "$opened" >&2; } 3>&1 | sed -z "$opened"' files
# fails if the directory was removed meanwhile
[ -d "$1" ]
