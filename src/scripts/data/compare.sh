# Follows node/close.sh, upload/common.sh and data/lock.sh. Four more arguments: tree (hash of the manifest), origin, earlier_origin (what
# an earlier hvdctl wrote in its place), shared (not empty: the origin there does not matter). Lets no earlier push that is still under
# way here put anything into place, and closes the directories. Prints what the node has of the data, in records ended by NUL that
# sync/data.rs reads. Jobs only read data: what is in .NAME@CLUSTER and in NAME, and named by the manifest `shipped`, is hvdctl's. `tree`,
# the hash of `shipped`, is there if the files are complete. `stage/t` has what arrived of a push that was interrupted.
tree=$4 origin=$5 earlier_origin=$6 shared=$7

# prints modes and hashes of the regular files among the names that a command prints (NUL)
files() { # PREFIX DIRECTORY COMMAND
  "$3" | regular "$2" | sed -z "s/^/$1mode /"
  "$3" | regular "$2" | cut -z -d' ' -f2- | (cd "$2" && xargs -0 -r b2sum -l 256 -z) | sed -z "s/^/$1hash /"
}
regular() { # DIRECTORY
  (cd "$1" && xargs -0 -r stat --printf='%f %n\0' 2>/dev/null) | grep -az '^8'
}
# prints the names of the entries that may differ from the manifest
changed() {
  if [ -f "$known/stat" ]; then
    stats "$known/shipped" "$name" | sort -z | { comm -z -23 "$known/stat" - || abort; } | cut -z -d' ' -f6-
  else
    names <"$known/shipped"
  fi
}
staged() { (cd "$known/stage/t" && find . -type f -print0); }

for other in ".$name@"*; do
  if [ "$other" != "$known" ] && [ -d "$other" ]; then
    record "cluster ${other#*@}"
    exit 0
  fi
done
if [ -d "$known" ]; then
  lock
  rm -rf "$known/push" "$known/relay" || exit
  [ ! -d "$known/stage" ] || lock_stage
fi
if [ -h "$name" ] || { [ -e "$name" ] && { [ ! -f "$known/shipped" ] || [ ! -d "$name" ]; }; }; then
  record foreign
  exit 0
fi
if [ -z "$shared" ] && [ -s "$known/origin" ]; then
  recorded_origin=$(cat "$known/origin") || exit
  case $recorded_origin in
  "$origin" | "$earlier_origin") ;;
  *) record "origin $recorded_origin" && exit 0 ;;
  esac
fi
if [ -d "$name" ]; then
  close_directory "$name" || exit
  record present
  if [ -f "$known/tree" ] && [ "$(b2sum -l 256 <"$known/shipped")" = "$tree  -" ] &&
    stats "$known/shipped" "$name" | sort -z | cmp -s - "$known/stat"; then
    record same
    exit 0
  fi
  sed -z 's/^/had /' "$known/shipped" || exit
  changed | sed -z 's|^\./|changed - - - |'
  files '' "$name" changed
fi
if [ -d "$known/stage/t" ]; then
  record staging
  files staged- "$known/stage/t" staged
fi
space=$(df -Pk . | awk 'NR == 2 { print $4 }') || exit
record "free $((space * 1024))"
