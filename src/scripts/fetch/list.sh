# Follows upload/common.sh. One more argument: the job's id. Prints what is in its project's directory, in records ended by NUL that
# sync/outputs.rs reads: what was uploaded, what of that has not changed, and every file and link. Changes nothing.
id=$4
work=$name list=$known/shipped
# the job's separate directory, as long as it is not merged into the project's
if [ -d "$name+$id" ]; then work=$name+$id list=$known/shipped+$id; fi
[ -d "$work" ] || exit 0
record directory - - - "$work"
if [ -f "$list" ]; then
  sed -z 's/^/had /' "$list" || exit
  if [ "$list" = "$known/shipped" ] && [ -f "$known/stat" ]; then
    # a file that is missing here counts as changed, and is fetched
    { cat "$known/stat" && stats "$list" "$work"; } | sort -z | uniq -zd | cut -z -d' ' -f6- | sed -z 's|^\./|same - - - |'
  fi
fi
# without the bytecode that Python writes next to the program
cd "$work" && find . -ignore_readdir_race -mindepth 1 -name __pycache__ -type d -prune -o \
  -type f -printf 'file %m %s %T@ %P\0' -o -type l -printf 'link - - - %P\0to - - - %l\0'
