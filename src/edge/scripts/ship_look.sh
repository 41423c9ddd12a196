# Behind ship_common.sh, with three more arguments: tree (its hash), origin, shared (not empty: whoever shipped it before).
# Says what the node has of a project, in records ended by NUL (ops/ship.rs reads them), and makes its folder.
tree=$4 origin=$5 shared=$6

recorded=
for other in ".$name@"*; do
  [ -d "$other" ] || continue
  recorded=yes
  if [ -z "$shared" ] && [ -s "$other/origin" ] && [ "$(cat "$other/origin")" != "$origin" ]; then
    say "origin $(cat "$other/origin")"
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
if [ ! -d "$name" ]; then
  mkdir "$name" || exit 1
  say new
fi
gather

if [ ! -f "$known/shipped" ] || [ ! -f "$known/stat" ]; then
  say unsure
elif [ "$(sha256sum <"$known/shipped")" = "$tree  -" ] && stats "$known/shipped" "$name" | cmp -s - "$known/stat"; then
  say same
  exit 0
fi
! busy "$name" || say busy
[ -f "$known/shipped" ] || exit 0
sed -z 's/^/had /' "$known/shipped"
[ -f "$known/stat" ] || exit 0
stats "$known/shipped" "$name" | comm -z -23 "$known/stat" - | cut -z -d' ' -f6- | sed -z 's|^\./|changed |'
