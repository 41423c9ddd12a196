# Follows node/close.sh, upload/common.sh, data/lock.sh and upload/receive.sh. Five more arguments: tree, arrived, placed (hashes, see
# sync/manifest.rs), origin, pipe (where the stream comes from a relay; empty: standard input). New data are renamed into place as a
# whole. Of data that are there, only changed files are staged, and each is renamed into place: there is never a second copy of all.
# Without `tree` the data are incomplete. After a failure what has arrived stays, and the next push compares it.
tree=$4 arrived=$5 expected=$6 origin=$7 pipe=$8
stage=$(pwd)/$known/stage

fail() { # MESSAGE [EXIT-CODE]
  [ -z "$1" ] || echo "$1" >&2
  exit "${2:-1}"
}
check_mark() {
  [ "$(cat "$known/push")" = "$mark" ] || fail "another push of these data has begun meanwhile"
}
record_origin() {
  { printf '%s\n' "$origin" >"$stage/origin" && mv -f "$stage/origin" "$known/origin"; } || fail ""
}
# checks types and modes by their states
prove() {
  cut -z -d' ' -f1,6- "$stage/stat" | has_hash "$expected" || fail "some files are not in place with their type and mode" 4
}
place_new() {
  { close_directory "$stage/t" && stats "$stage/m" "$stage/t" >"$stage/stat"; } || fail ""
  prove
  { mv -f "$stage/m" "$known/shipped" && mv -T "$stage/t" "$name"; } || fail ""
}
place_changes() {
  # both manifests name what is hvdctl's until the new one is proven
  { sort -zu "$known/shipped" "$stage/sent" >"$stage/both" && mv -f "$stage/both" "$known/shipped"; } || fail ""
  # shellcheck disable=SC2034 # upload/receive.sh reads it
  work=$name
  { remove_gone && place && states >"$stage/stat"; } || fail ""
  prove
  mv -f "$stage/m" "$known/shipped" || fail ""
}

# reads from the relay's pipe, which begins with a newline. The script has both ends of it until then, and so waits for no relay that
# never comes; afterwards the pipe ends with the relay
take_pipe() {
  exec 8<>"$pipe"
  exec <"$pipe"
  timeout 60 dd bs=1 count=1 of=/dev/null 2>/dev/null 7<&- || fail "the relay of the node sends nothing"
  exec 8>&-
}

main() {
  mark="$$ $(date +%s.%N)"
  { mkdir -p "$stage/t" && printf '%s\n' "$mark" >"$known/push"; } || fail ""
  lock_stage
  check_mark
  { mkdir -p "$stage/t" && find "$stage" -mindepth 1 -maxdepth 1 ! -name t -exec rm -rf {} +; } || fail ""
  echo $$ >"$stage/pid" || fail ""
  # data that are there keep theirs until they are changed
  [ -d "$name" ] || record_origin
  [ -z "$pipe" ] || take_pipe
  { receive && make_manifest; } || fail ""
  has_hash "$tree" <"$stage/m" || fail "the manifest that arrived differs from the one that was sent" 3
  staged | has_hash "$arrived" || fail "the files that arrived differ from those that were sent" 3
  lock
  check_mark
  rm -f "$known/tree" || fail ""
  forget_states || fail ""
  record_origin
  if [ -d "$name" ]; then place_changes; else place_new; fi
  { mv -f "$stage/stat" "$known/stat" && printf '%s\n' "$tree" >"$stage/tree" && mv -f "$stage/tree" "$known/tree"; } || fail ""
  b2sum -l 256 <"$known/shipped"
  rm -rf "$stage" "$compared" "$known/push" "$known/relay" || :
}

main
