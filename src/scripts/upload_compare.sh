# Behind upload_common.sh, with four more arguments: tree (its hash), origin, shared (not empty: whatever origin it has there), jobs
# (the ids of this project's running jobs). Prints what the node has of a project, in records ended by NUL (sync/upload.rs reads
# them), and makes its directory.
tree=$4 origin=$5 shared=$6 jobs=$7

has_ended() {
  case " $jobs " in *" $1 "*) return 1 ;; esac
}
# whether one of them has the project's own directory
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
  if [ -z "$shared" ] && [ -s "$other/origin" ] && [ "$(cat "$other/origin")" != "$origin" ]; then
    say origin - - - "$(cat "$other/origin")"
    exit 0
  fi
done
if [ -z "$recorded$shared" ] && [ -n "$(ls -A "$name" 2>/dev/null)" ]; then
  say foreign
  exit 0
fi
mkdir -p "$known" || exit 1
if [ "$(cat "$known/origin" 2>/dev/null)" != "$origin" ]; then
  printf '%s\n' "$origin" >"$known/origin.new" && mv -f "$known/origin.new" "$known/origin" || exit 1
fi
made=
if [ ! -d "$name" ]; then
  mkdir "$name" || exit 1
  made=yes
  say new
fi
merge has_ended

if [ -f "$known/shipped" ] && [ -f "$known/stat" ] && [ "$(b2sum -l 256 <"$known/shipped")" = "$tree  -" ] && stats "$known/shipped" "$name" | sort -z | cmp -s - "$known/stat"; then
  say same
  exit 0
fi
# the job gets a directory of its own where another one is in this one
if in_use; then say busy; fi
if [ -f "$known/shipped" ]; then
  sed -z 's/^/had /' "$known/shipped"
  # without `stat`, an upload has not been proven, and any file may be another one
  if [ -f "$known/stat" ]; then
    stats "$known/shipped" "$name" | sort -z | comm -z -23 "$known/stat" - | cut -z -d' ' -f6-
  else
    names <"$known/shipped"
  fi | sed -z 's|^\./|changed - - - |'
fi
