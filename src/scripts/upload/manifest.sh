# Follows upload/common.sh. One more argument: `has` or `staged`. Prints the manifest of what the last comparison has found in place, or of
# the files that have arrived in an interrupted push.
list=$compared/$4
if [ "$4" = has ]; then
  list=$compared/present
  [ -f "$list" ] || list=$known/shipped
fi
cat "$list"
