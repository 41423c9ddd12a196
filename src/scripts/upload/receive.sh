# Follows upload/common.sh in scripts that receive files. Standard input is a tar stream: `m`, the records of what this node lacks, in the
# new manifest, below `t` these files, and in between `f1`, `f2` and so on, the names of the files since the list before. The variable
# `stage` is the staging directory, `work` the directory of the files on the node.

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
  cat "$stage/sums" && cd "$stage/t" && sed -zn '/^l /p' "$stage/sent" | names | targets
}
# makes the new manifest `m` of what was sent, what had arrived before, and what is there; `sent` are the records of the first two.
# `upload/prepare.sh` has made lists if there are any
make_manifest() {
  : >"$stage/gone" && mv -f "$stage/m" "$stage/sent" || return
  if [ -f "$compared/gone" ]; then cat "$compared/gone" >"$stage/gone" && cat "$compared/kept" >>"$stage/sent" || return; fi
  base=$known/shipped proven=$known/stat
  if [ -f "$compared/present" ]; then base=$compared/present proven=; fi
  if [ ! -f "$base" ] || [ ! -d "$name" ]; then base=/dev/null proven=; fi
  # all that was sent is all there is
  [ "$base" != /dev/null ] || [ -s "$compared/kept" ] || { ln "$stage/sent" "$stage/m" && return; }
  { { cat "$stage/sent" && sed -z 's/^/- - - /' "$stage/gone" && cat "$base"; } || abort; } | by_name 4 | without_gone >"$stage/m"
}
without_gone() { sed -z '/^- /d'; }
# removes what the new manifest no longer names, or names as something else
remove_gone() { sort -zr -o "$stage/gone" "$stage/gone" && remove "$work" <"$stage/gone"; }
# prints the states of all files: those of the last push, which was proven and is intact, and of what was sent those of now
states() {
  [ -n "$proven" ] || { stats "$stage/m" "$work" && return; }
  { { stats "$stage/sent" "$work" && sed -z 's|^|- - - - - ./|' "$stage/gone" && cat "$proven"; } || abort; } | by_name 6 |
    without_gone
}
# the state of the files is unknown until it is proven again
forget_states() {
  if [ -f "$known/stat" ]; then mv -f "$known/stat" "$stage/was" || return; fi
  proven=${proven:+$stage/was}
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
