# Follows upload/common.sh in scripts that receive files. Standard input is a tar stream: the new manifest `m`, below `t` what this node
# lacks, and in between `f1`, `f2` and so on, the names of the files since the list before. The variable `stage` is the staging directory,
# `work` the directory of the files on the node.

has_hash() { # HASH of standard input
  [ "$(b2sum -l 256)" = "$1  -" ]
}
# prints the hashes of the files named on standard input (NUL) without separators
hashes() { xargs -0 -r b2sum -l 256 -bz | cut -z -c1-64 | tr -d '\0'; }
targets() { xargs -0 -r readlink -z; }
# extracts the stream, and hashes what is complete while more arrives. Whatever the stream says, nothing is ever writable by others or
# setuid: no manifest has such modes (sync/contents.rs)
receive() {
  {
    # shellcheck disable=SC2016 # it is the inner shell's
    sh -c 'echo "$$" >"$1/pid" && umask 022 &&
      exec tar --extract --file=- --blocking-factor=512 --no-same-permissions --no-same-owner --directory="$1"' \
      sh "$stage" 2>&1 && : >"$stage/all"
  } | end_without_space | hash_lists
}
# passes on what tar complains of, and ends it when the disk is full: it would read the rest of the stream. The last write to a full disk
# is a short one, for which tar names no reason: that of the next write is printed
end_without_space() {
  while IFS= read -r line; do
    printf '%s\n' "$line" >&2
    case $line in
    *'No space left on device'* | *'Disk quota exceeded'*) kill -s PIPE "$(cat "$stage/pid")" 2>/dev/null ;;
    *': Wrote only '*)
      kill -s PIPE "$(cat "$stage/pid")" 2>/dev/null
      head -c 1048576 /dev/zero >"$stage/rest"
      rm -f "$stage/rest"
      ;;
    esac
  done
}
# hashes the files of each list until tar has ended, and with it standard input, to which nothing is written. A list is complete when
# the next one is there. The first errors of hashing are printed, unless tar has failed: that is their cause
hash_lists() {
  cd "$stage" || return
  list=1 errors=
  while
    timeout 0.1 cat
    [ $? = 124 ]
  do
    while [ -e "f$((list + 1))" ]; do hash_list; done
  done
  [ -e all ] || return
  while [ -e "f$list" ]; do hash_list; done
  [ -z "$errors" ] || echo "$errors" | head -n 3 >&2
}
hash_list() {
  failed=$( (cd t && hashes) <"f$list" 2>&1 >>sums)
  errors=${errors:-$failed}
  list=$((list + 1))
}
# prints what has arrived: the hashes of the files, the targets of the links
staged() {
  cat "$stage/sums" && cd "$stage/t" && find . -type l -print0 | sort -z | targets
}
# writes kinds and names of a manifest to a file
kinds() { # MANIFEST FILE
  sed -z 's/^\(.\) [^ ]* [^ ]* /\1 /' "$1" >"$2" && sort -zu -o "$2" "$2"
}
# removes what the new manifest no longer names, or names as something else
remove_old() {
  kinds "$known/shipped" "$stage/old" && kinds "$stage/m" "$stage/new" || return
  comm -z -23 "$stage/old" "$stage/new" >"$stage/gone" && cut -z -c3- "$stage/gone" >"$stage/names" || return
  sort -zr -o "$stage/names" "$stage/names" && remove "$work" <"$stage/names"
}
# puts what is staged into its place: first directories that are completely new, then the rest; cp -l replaces a file in one step, and
# reports what mv could not move
place() {
  at=$(cd "$work" && pwd) || return
  (cd "$stage/t" && find . -mindepth 1 -maxdepth 1 -exec mv -n -t "$at" -- {} + 2>/dev/null)
  # cp gives "$work" the group and the mode of t
  { chgrp --reference="$work" "$stage/t" && chmod --reference="$work" "$stage/t" && cp -alf "$stage/t/." "$work/"; } || return
  # before `stats`: the ctime of a file changes when one of its names is removed
  rm -rf "$stage/t"
}
