# Behind ship_common.sh, with four more arguments: id (of the run that gets a folder of its own, or empty), tree, proof, whole
# (hashes, see core/manifest.rs). Standard input is a tar stream: the new manifest `m`, and below `t` what this node lacks. It
# is proven beside the project and only then put into it, by renaming: whatever goes wrong before leaves the earlier tree
# whole.
id=$4 tree=$5 proof=$6 whole=$7
stage=$known/stage

fail() {
  [ -z "$1" ] || echo "$1" >&2
  rm -rf "$stage"
  exit 1
}
is() { # HASH: whether standard input has it
  [ "$(sha256sum)" = "$1  -" ]
}
listed() { # TEST…: what find has here, by name
  find . -mindepth 1 "$@" -print0 | sort -z
}
# the hashes of files one behind the other; openssl uses what the processor has for it, where it is installed
sums() { # openssl | coreutils
  case $1 in
  openssl) xargs -0 -r openssl dgst -sha256 -binary 2>/dev/null | od -An -v -tx1 | tr -d ' \n' ;;
  *) xargs -0 -r sha256sum -bz | cut -z -c1-64 | tr -d '\0' ;;
  esac
}
staged() { # PROGRAM
  listed | xargs -0 -r stat --printf='%f %n\0'
  listed -type f | sums "$1"
  listed -type l | xargs -0 -r readlink -z
}
# the same of all that the new manifest names; of a copy that a run could write to, the contents too
placed() { # MANIFEST
  names <"$1" | xargs -0 -r stat --printf='%f %n\0'
  [ -n "$id" ] || return 0
  grep -az '^f ' "$1" | names | sums coreutils
  grep -az '^l ' "$1" | names | xargs -0 -r readlink -z
}
# kinds and names of a manifest
kinds() { sed -z 's/^\(.\) [^ ]* [^ ]* /\1 /' "$1" | sort -z; }

main() {
  if ! { rm -rf "$stage" && mkdir -p "$stage/t"; }; then fail ""; fi
  tar --extract --file=- --same-permissions --no-same-owner --directory="$stage" || fail ""
  is "$tree" <"$stage/m" || fail "the list of the files did not arrive as it was sent"
  (cd "$stage/t" && staged openssl) | is "$proof" || (cd "$stage/t" && staged coreutils) | is "$proof" ||
    fail "what arrived is not what was read"

  work=$name
  if [ -n "$id" ]; then
    work=$stage/w
    # a run is at work there: what it has just removed is no loss
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
  # whole folders where there are none yet, then the rest; a link to a file takes another's name in one step
  at=$(cd "$work" && pwd)
  (cd "$stage/t" && find . -mindepth 1 -maxdepth 1 -exec mv -n -t "$at" -- {} + 2>/dev/null)
  chmod --reference="$work" "$stage/t"
  cp -alf "$stage/t/." "$work/" || fail ""
  new=$(pwd)/$stage/m
  (cd "$work" && placed "$new") | is "$whole" || fail "the files could not be put in their places"

  if [ -n "$id" ]; then
    { mv "$stage/m" "$known/shipped+$id" && mv "$work" "$name+$id"; } || fail ""
    sha256sum <"$known/shipped+$id"
  else
    # a file's ctime changes with the names that it has
    rm -rf "$stage/t"
    stats "$stage/m" "$work" >"$stage/stat" || fail ""
    { mv -f "$stage/m" "$known/shipped" && mv -f "$stage/stat" "$known/stat"; } || fail ""
    sha256sum <"$known/shipped"
  fi
  rm -rf "$stage"
}

main
