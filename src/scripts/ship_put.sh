# Behind ship_look.sh. When all is said it waits; standard input has a line with two hashes (see core/manifest.rs) and then a
# tar stream: the new manifest `m`, the names of the links in it `l`, below `t` what this node lacks, and in between `f1`, `f2`
# and so on, the names of the files since the one before. Its contents are proven beside the project and only then put into it,
# by renaming: whatever goes wrong before leaves the earlier tree whole. What types and modes are like is looked at in its
# place. Where nothing comes, nothing more is done.
printf '\0waits\0'
read -r arrived whole || exit 0
stage=$(pwd)/$known/stage

fail() {
  [ -z "$1" ] || echo "$1" >&2
  rm -rf "$stage"
  exit 1
}
is() { # HASH: whether standard input has it
  [ "$(b2sum -l 256)" = "$1  -" ]
}
# b2sum's lines for files, made by several processors: each has a part of the list
sums() { # LIST
  split -t '\0' -n "l/$at_once" "$1" "$1." || return
  for part in "$1".??; do
    xargs -0 -r b2sum -l 256 -bz <"$part" >"$part.sums" &
  done
  wait
  cat "$1".??.sums
}
# the hashes in such lines, one behind the other
digits() { cut -z -c1-64 | tr -d '\0'; }
# hashes the files of the lists that are whole: those with another one behind them, or all
listed() { # 1 or 0: how many more there must be
  : >"$stage/n"
  while [ -e "$stage/f$((next + $1))" ]; do
    cat "$stage/f$next" >>"$stage/n" && rm "$stage/f$next" || return
    next=$((next + 1))
  done
  [ ! -s "$stage/n" ] || (cd "$stage/t" && sums "$stage/n") >>"$stage/sums"
}
# Hashes what has come whole while more is coming: way and disk leave time for it. When standard input ends, nothing more comes
follow() {
  next=1
  while
    timeout 0.3 cat
    [ $? -eq 124 ]
  do
    # a list is whole when the next one is there
    listed 1 || return
  done
  [ -e "$stage/all" ] && listed 0
}
# what has arrived: the hashes of the files, where the links lead
staged() {
  digits <"$stage/sums"
  (cd "$stage/t" && xargs -0 -r readlink -z <"$stage/l")
}
# what is in its place of all that the new manifest names: types and modes; of a copy that a run could write to, the contents
placed() {
  cut -z -d' ' -f1,6- "$stage/stat"
  [ -n "$id" ] || return 0
  grep -az '^f ' "$stage/m" | names >"$stage/n"
  (cd "$work" && sums "$stage/n") | digits
  (cd "$work" && grep -az '^l ' "$stage/m" | names | xargs -0 -r readlink -z)
}
# kinds and names of a manifest
kinds() { sed -z 's/^\(.\) [^ ]* [^ ]* /\1 /' "$1" | sort -z; }

main() {
  at_once=$(nproc)
  [ "$at_once" -le 8 ] || at_once=8
  if ! { rm -rf "$stage" && mkdir -p "$stage/t" && : >"$stage/sums"; }; then fail ""; fi
  # from a pipe in large pieces; for each of them a dot goes to who sends them, on our standard output
  {
    {
      tar --extract --file=- --blocking-factor=512 --same-permissions --no-same-owner --directory="$stage" \
        --checkpoint=1 --checkpoint-action=dot >&3 && : >"$stage/all"
    } | follow
  } 3>&1 || fail ""
  is "$tree" <"$stage/m" || fail "the list of the files did not arrive as it was sent"
  staged | is "$arrived" || fail "what arrived is not what was read"
  # on a disk that is nearly full, they leave room for what is still written
  rm -f "$stage"/[ns]*

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
