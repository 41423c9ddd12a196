# Follows node/close.sh, upload/common.sh and data/lock.sh. Four more arguments: tree (hash of the manifest), origin, earlier_origin (what
# an earlier hvdctl wrote in its place), shared (not empty: data from another origin may be replaced). Lets no earlier push that is still under
# way here put anything into place, and closes the directories. Prints what the node has of the data, in records ended by NUL that
# data/transfer.rs reads. Jobs only read data: what is in .NAME@CLUSTER and in NAME, and named by the manifest `shipped`, is hvdctl's. `tree`,
# the hash of `shipped`, is there if the files are complete. `stage/t` has what arrived of a push that was interrupted.
tree=$4 origin=$5 earlier_origin=$6 shared=$7

# prints the records of the regular files among the names on standard input (./NAME, NUL) that can be read
records() { # DIRECTORY
  mkdir -p "$compared" && (cd "$1" && xargs -0 -r stat --printf='%f %n\0' 2>/dev/null) | { grep -az '^8' || :; } |
    cut -z -d' ' -f2- | (cd "$1" && xargs -0 -r b2sum -l 256 -bz) >"$compared/hashes"
  cut -z -c67- "$compared/hashes" >"$compared/names" || return
  (cd "$1" && xargs -0 -r stat --printf='f %a\0') <"$compared/names" >"$compared/modes" || return
  cut -z -c1-64 "$compared/hashes" | paste -z -d ' ' "$compared/modes" - "$compared/names" |
    sed -z 's|^\([^ ]* [^ ]* [^ ]* \)\./|\1|'
}

# prints records with the kind alone of what has the names on standard input now: what an interrupted push has not
# removed, or others have put there, is removed if it is of another kind than what is placed
kinds() { # DIRECTORY
  (cd "$1" && xargs -0 -r stat --printf='%f %n\0' 2>/dev/null) |
    sed -z 's|^8[^ ]* \./|f - - |; t; s|^4[^ ]* \./|d - - |; t; s|^a[^ ]* \./|l - - |; t; s|^[^ ]* \./|- - - |'
}

for other in ".$name@"*; do
  if [ "$other" != "$known" ] && [ -d "$other" ]; then
    record "cluster ${other#*@}"
    exit 0
  fi
done
if [ -d "$known" ]; then
  lock
  rm -rf "$known/push" "$known/relay" "$compared" || exit
  [ ! -d "$known/stage" ] || lock_stage
fi
if [ -h "$name" ] || { [ -e "$name" ] && { [ ! -f "$known/shipped" ] || [ ! -d "$name" ]; }; }; then
  record foreign
  exit 0
fi
if [ -s "$known/origin" ]; then
  recorded_origin=$(cat "$known/origin") || exit
  case $recorded_origin:$shared in
  "$origin:$shared" | "$earlier_origin:$shared") ;;
  *:) record "origin $recorded_origin" && exit 0 ;;
  *) record "replaces $recorded_origin" ;;
  esac
fi
if [ -d "$name" ]; then
  close_directory "$name" || exit
  record present
  if is_intact; then
    hash=$(b2sum -l 256 <"$known/shipped") || exit
    if [ -f "$known/tree" ] && [ "$hash" = "$tree  -" ]; then
      record same
      exit 0
    fi
  else
    survey
    records "$name" <"$compared/changed" >"$compared/actual" || exit
    kinds "$name" <"$compared/changed" >"$compared/kinds" || exit
    cat "$compared/actual" "$compared/kinds" "$compared/present" | by_name 4 >"$compared/all" || exit
    mv -f "$compared/all" "$compared/present" || exit
    hash=$(b2sum -l 256 <"$compared/present") || exit
  fi
  record "has ${hash%% *}"
fi
if [ -d "$known/stage/t" ]; then
  record staging
  (cd "$known/stage/t" && find . -type f -print0) | sort -z | records "$known/stage/t" >"$known/staged" || exit
  mkdir -p "$compared" && mv -f "$known/staged" "$compared/staged" || exit
  hash=$(b2sum -l 256 <"$compared/staged") || exit
  record "staged ${hash%% *}"
fi
space=$(df -Pk . | awk 'NR == 2 { print $4 }') || exit
record "free $((space * 1024))"
record_inodes
