# Follows data/exists.sh, upload/common.sh and data/lock.sh. Removes the files that a push named, and the
# directories that are empty then. Prints the record `removed` if there was anything, and `left` if others have files there.
[ -d "$known" ] || exit 0
lock
rm -f "$known/tree" "$known/stat" || exit
if [ -f "$known/shipped" ] && [ -d "$name" ] && [ ! -h "$name" ]; then
  cut -z -d' ' -f4- "$known/shipped" | sort -zru | remove "$name" || exit
  rmdir "$name" 2>/dev/null
fi
rm -rf "$known" || exit
record removed
if [ -e "$name" ]; then record left; fi
