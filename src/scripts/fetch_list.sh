# Behind upload_common.sh, with one more argument: id, the job's. Prints what is in its project's directory, in records ended by NUL
# (sync/outputs.rs reads them): what was uploaded, what of that is as it was, and every file and link. Changes nothing.
id=$4
work=$name list=$known/shipped
# a directory of its own, as long as that is not merged into the project's
if [ -d "$name+$id" ]; then work=$name+$id list=$known/shipped+$id; fi
[ -d "$work" ] || exit 0
say directory - - - "$work"
if [ -f "$list" ]; then
  sed -z 's/^/had /' "$list"
  if [ "$list" = "$known/shipped" ] && [ -f "$known/stat" ]; then
    stats "$list" "$work" | comm -z -12 "$known/stat" - | cut -z -d' ' -f6- | sed -z 's|^\./|same - - - |'
  fi
fi
# what Python compiles beside the program is nobody's output
cd "$work" && find . -ignore_readdir_race -mindepth 1 -name __pycache__ -type d -prune -o \
  -type f -printf 'file %m %s %T@ %P\0' -o -type l -printf 'link - - - %P\0to - - - %l\0'
