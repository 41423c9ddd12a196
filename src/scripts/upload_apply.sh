# Follows upload_common.sh. Four more arguments: tree, arrived, placed (hashes, see sync/manifest.rs), id (of a job that gets a separate
# directory, else empty). Standard input is a tar stream: the new manifest `m`, below `t` what this node lacks, and in between `f1`, `f2`
# and so on, the names of the files since the list before. The contents are checked in a staging directory next to the project and only
# then moved into it: a failure before that leaves the earlier files intact. Types and modes are checked in their place.
tree=$4 arrived=$5 expected=$6 id=$7
stage=$(pwd)/$known/stage.$$

fail() { # MESSAGE [EXIT-CODE]
  [ -z "$1" ] || echo "$1" >&2
  rm -rf "$stage"
  exit "${2:-1}"
}
has_hash() { # HASH of standard input
  [ "$(b2sum -l 256)" = "$1  -" ]
}
# prints the hashes of the files named on standard input (NUL) without separators
hashes() { xargs -0 -r b2sum -l 256 -bz | cut -z -c1-64 | tr -d '\0'; }
targets() { xargs -0 -r readlink -z; }
# extracts the stream, and hashes what is complete while more arrives
receive() {
  {
    tar --extract --file=- --blocking-factor=512 --same-permissions --no-same-owner --directory="$stage" && : >"$stage/all"
  } | hash_lists
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
# prints types and modes of what is in place of the new manifest; also the contents of a separate directory, because a job may have
# written to the original while it was copied
placed() (
  cut -z -d' ' -f1,6- "$stage/stat"
  [ -n "$id" ] || return 0
  cd "$work" || return
  grep -az '^f ' "$stage/m" | names | hashes
  grep -az '^l ' "$stage/m" | names | targets
)
# writes kinds and names of a manifest to a file
kinds() { # MANIFEST FILE
  sed -z 's/^\(.\) [^ ]* [^ ]* /\1 /' "$1" >"$2" && sort -z -o "$2" "$2"
}
# removes what the new manifest no longer names, or names as something else
remove_old() {
  kinds "$known/shipped" "$stage/old" && kinds "$stage/m" "$stage/new" || return
  comm -z -23 "$stage/old" "$stage/new" >"$stage/gone" && cut -z -c3- "$stage/gone" >"$stage/names" || return
  sort -zr -o "$stage/names" "$stage/names" && remove "$work" <"$stage/names"
}

main() {
  # the staging directories of uploads that lost their connection; a tar may still be writing to them
  rm -rf "$known"/stage* 2>/dev/null
  mkdir "$stage" "$stage/t" || fail ""
  receive || fail ""
  has_hash "$tree" <"$stage/m" || fail "the manifest that arrived differs from the one that was sent" 3
  staged | has_hash "$arrived" || fail "the files that arrived differ from those that were sent" 3

  work=$name
  if [ -n "$id" ]; then
    work=$stage/w
    # a running job may remove files meanwhile
    copy() { cp -a --reflink=auto "$name" "$work" || [ $? = 1 ] || echo "$name was not copied to its end" >&2; }
    errors=$(copy 2>&1 | grep -v 'No such file or directory$' | head -n 3)
    [ -z "$errors" ] || fail "$errors"
  else
    # from here on the state of the files is unknown until it is proven again
    rm -f "$known/stat" || fail ""
  fi
  if [ -f "$known/shipped" ]; then remove_old || fail ""; fi
  # first directories that are completely new, then the rest; cp -l replaces a file in one step, and reports what mv could not move
  at=$(cd "$work" && pwd) || fail ""
  (cd "$stage/t" && find . -mindepth 1 -maxdepth 1 -exec mv -n -t "$at" -- {} + 2>/dev/null)
  { chmod --reference="$work" "$stage/t" && cp -alf "$stage/t/." "$work/"; } || fail ""
  # before `stats`: the ctime of a file changes when one of its names is removed
  rm -rf "$stage/t" || fail ""
  stats "$stage/m" "$work" >"$stage/stat"
  placed | has_hash "$expected" || fail "some files are not in place with their type and mode" 4

  if [ -n "$id" ]; then
    { mv "$stage/m" "$known/shipped+$id" && mv -T "$work" "$name+$id"; } || fail ""
    b2sum -l 256 <"$known/shipped+$id"
  else
    sort -z -o "$stage/stat" "$stage/stat" || fail ""
    { mv -f "$stage/m" "$known/shipped" && mv -f "$stage/stat" "$known/stat"; } || fail ""
    b2sum -l 256 <"$known/shipped"
  fi
  # the upload is proven, and the next one removes what may be left of this one
  rm -rf "$stage" || :
}

main
