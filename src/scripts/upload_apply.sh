# Behind upload_common.sh, with four more arguments: tree, arrived, whole (hashes, see sync/manifest.rs), id (of a job that gets a
# directory of its own, else empty). Standard input is a tar stream: the new manifest `m`, and below `t` what this node lacks. The
# contents are proven beside the project and only then moved into it: whatever fails before leaves the earlier files whole. Types
# and modes are proven in their place.
tree=$4 arrived=$5 whole=$6 id=$7
stage=$(pwd)/$known/stage

fail() {
  [ -z "$1" ] || echo "$1" >&2
  rm -rf "$stage"
  exit 1
}
is() { # HASH: whether standard input has it
  [ "$(b2sum -l 256)" = "$1  -" ]
}
# the hashes of the files on standard input (NUL) one behind the other
hashes() { xargs -0 -r b2sum -l 256 -bz | cut -z -c1-64 | tr -d '\0'; }
targets() { xargs -0 -r readlink -z; }
# what has arrived: the hashes of the files, the targets of the links
staged() (
  cd "$stage/t" || return
  find . -type f -print0 | sort -z | hashes
  find . -type l -print0 | sort -z | targets
)
# what is in its place of all that the new manifest names: types and modes; of a copy that a job could write to, the contents
placed() (
  cut -z -d' ' -f1,6- "$stage/stat"
  [ -n "$id" ] || return 0
  cd "$work" || return
  grep -az '^f ' "$stage/m" | names | hashes
  grep -az '^l ' "$stage/m" | names | targets
)
# kinds and names of a manifest
kinds() { sed -z 's/^\(.\) [^ ]* [^ ]* /\1 /' "$1" | sort -z; }

main() {
  if ! { rm -rf "$stage" && mkdir -p "$stage/t"; }; then fail ""; fi
  tar --extract --file=- --blocking-factor=512 --same-permissions --no-same-owner --directory="$stage" || fail ""
  is "$tree" <"$stage/m" || fail "the list of the files did not arrive as it was sent"
  staged | is "$arrived" || fail "what arrived is not what was read"

  work=$name
  if [ -n "$id" ]; then
    work=$stage/w
    # a job is at work there: what it has just removed is no loss
    said=$(cp -a --reflink=auto "$name" "$work" 2>&1 | grep -v 'No such file or directory$' | head -n 3)
    [ -z "$said" ] || fail "$said"
  else
    # from here on nobody can be sure of the tree until it is proven again
    rm -f "$known/stat"
  fi
  if [ -f "$known/shipped" ]; then
    kinds "$known/shipped" >"$stage/old"
    kinds "$stage/m" | comm -z -23 "$stage/old" - | cut -z -c3- | sort -zr | remove "$work"
  fi
  # whole directories where there are none yet, then the rest; a link to a file takes another's name in one step
  at=$(cd "$work" && pwd)
  (cd "$stage/t" && find . -mindepth 1 -maxdepth 1 -exec mv -n -t "$at" -- {} + 2>/dev/null)
  chmod --reference="$work" "$stage/t"
  cp -alf "$stage/t/." "$work/" || fail ""
  # a file's ctime changes with the names that it has
  rm -rf "$stage/t"
  stats "$stage/m" "$work" >"$stage/stat"
  placed | is "$whole" || fail "not all is in its place with its type and mode"

  if [ -n "$id" ]; then
    { mv "$stage/m" "$known/shipped+$id" && mv "$work" "$name+$id"; } || fail ""
    b2sum -l 256 <"$known/shipped+$id"
  else
    sort -z -o "$stage/stat" "$stage/stat" || fail ""
    { mv -f "$stage/m" "$known/shipped" && mv -f "$stage/stat" "$known/stat"; } || fail ""
    b2sum -l 256 <"$known/shipped"
  fi
  rm -rf "$stage"
}

main
