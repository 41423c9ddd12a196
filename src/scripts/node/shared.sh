# Finds directories that nodes have in common, in three steps on all of them: each node marks its directories, looks for the marks of the
# others, and removes its own. A mark is looked up by its name, because a network file system may show an old listing. Variables: step,
# nonce, me, others (numbers of nodes), directories (lines "WHAT DIRECTORY"). Prints "WHAT NUMBER" for each directory that is shared.
printf '%s\n' "$directories" | while read -r what directory; do
  mark=$directory/.hvdctl-shared-
  case $step in
  mark)
    # those of commands that were ended before they removed them
    find "$directory" -maxdepth 1 -name '.hvdctl-shared-*' -mmin +60 -exec rm -f {} + 2>/dev/null
    # data cannot be pushed where nothing can be written, and jobs do not need them there
    : >"$mark$nonce-$me" || [ "$what" = data ] || exit
    ;;
  look)
    for other in $others; do
      [ "$other" = "$me" ] || [ ! -e "$mark$nonce-$other" ] || printf '%s %s\n' "$what" "$other"
    done
    ;;
  clear) rm -f "$mark$nonce-$me" ;;
  esac
done
