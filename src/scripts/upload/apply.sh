# Follows upload/common.sh and upload/receive.sh. Four more arguments: tree, arrived, placed (hashes, see sync/manifest.rs), id (of a job
# that gets a separate directory, else empty). The contents are checked in a staging directory next to the project and only then moved
# into it: a failure before that leaves the earlier files intact. Types and modes are checked in their place.
tree=$4 arrived=$5 expected=$6 id=$7
stage=$(pwd)/$known/stage.$$

fail() { # MESSAGE [EXIT-CODE]
  [ -z "$1" ] || echo "$1" >&2
  rm -rf "$stage"
  exit "${2:-1}"
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
main() {
  # the staging directories of uploads that lost their connection; a tar may still be writing to them
  rm -rf "$known"/stage* 2>/dev/null
  mkdir "$stage" "$stage/t" || fail ""
  { receive && make_manifest; } || fail ""
  has_hash "$tree" <"$stage/m" || fail "the manifest that arrived differs from the one that was sent" 3
  staged | has_hash "$arrived" || fail "the files that arrived differ from those that were sent" 3

  work=$name
  if [ -n "$id" ]; then
    work=$stage/w
    # a running job may remove files meanwhile
    copy() { cp -a --reflink=auto "$name" "$work" || [ $? = 1 ] || echo "$name was not copied completely" >&2; }
    errors=$(copy 2>&1 | grep -v 'No such file or directory$' | head -n 3)
    [ -z "$errors" ] || fail "$errors"
  else
    forget_states || fail ""
  fi
  { remove_gone && place; } || fail ""
  if [ -n "$id" ]; then stats "$stage/m" "$work"; else states; fi >"$stage/stat" || fail ""
  placed | has_hash "$expected" || fail "some files are not in place with their type and mode" 4

  if [ -n "$id" ]; then
    { mv "$stage/m" "$known/shipped+$id" && mv -T "$work" "$name+$id"; } || fail ""
    b2sum -l 256 <"$known/shipped+$id"
  else
    { mv -f "$stage/m" "$known/shipped" && mv -f "$stage/stat" "$known/stat"; } || fail ""
    b2sum -l 256 <"$known/shipped"
  fi
  # the upload is proven, and the next one removes what may be left of this one
  rm -rf "$stage" "$compared" || :
}

main
