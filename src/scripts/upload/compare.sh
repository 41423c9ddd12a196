# Follows node/close.sh and upload/common.sh. Five more arguments: tree (hash of the manifest), origin, earlier_origin (what an earlier
# hvdctl wrote in its place), shared (not empty: the origin there does not matter), jobs (the ids of the project's running jobs). Creates
# and closes the project's directory and prints what the node has of the project, in records ended by NUL that sync/upload.rs reads.
tree=$4 origin=$5 earlier_origin=$6 shared=$7 jobs=$8

has_ended() {
  case " $jobs " in *" $1 "*) return 1 ;; esac
}
# tests whether one of the running jobs uses the project's directory
in_use() {
  for job in $jobs; do
    [ -d "$name+$job" ] || return 0
  done
  [ -z "$made" ] && busy "$name"
}

recorded=
for other in ".$name@"*; do
  [ -d "$other" ] || continue
  recorded=yes
  if [ -z "$shared" ] && [ -s "$other/origin" ]; then
    recorded_origin=$(cat "$other/origin") || exit
    case $recorded_origin in
    "$origin" | "$earlier_origin") ;;
    *) record origin - - - "$recorded_origin" && exit 0 ;;
    esac
  fi
done
if [ -z "$recorded$shared" ] && [ -e "$name" ]; then
  entries=$(ls -A "$name") || exit
  if [ -n "$entries" ]; then
    record foreign
    exit 0
  fi
fi
# an earlier hvdctl left it open
mkdir -p "$known" && chmod 700 "$known" || exit 1
# written if it is missing or cannot be read
if [ "$(cat "$known/origin" 2>/dev/null)" != "$origin" ]; then
  printf '%s\n' "$origin" >"$known/origin.new" && mv -f "$known/origin.new" "$known/origin" || exit 1
fi
made=
if [ ! -d "$name" ]; then
  mkdir "$name" || exit 1
  made=yes
  record new
fi
for directory in "$name" "$name"+*; do
  [ ! -d "$directory" ] || close_directory "$directory" || exit 1
done
merge has_ended

rm -rf "$compared" || exit
if [ -f "$known/shipped" ] && is_intact; then
  hash=$(b2sum -l 256 <"$known/shipped") || exit
  if [ "$hash" = "$tree  -" ]; then
    record same
    exit 0
  fi
  record "has ${hash%% *}"
elif [ -f "$known/shipped" ]; then
  survey
  hash=$(b2sum -l 256 <"$compared/present") || exit
  record "has ${hash%% *}"
fi
# another job uses the directory, so this one gets a separate one
if in_use; then record busy; fi
record_inodes
