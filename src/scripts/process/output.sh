# Appended to process/common.sh. Prints the end of what a process has written. Variables: which (its name or id), lines.
must_find "$which"
tail -n "$lines" -- "$directory/output" || exit
# of a line that calls `module` and has not ended (process/activate.sh)
tail -n "$lines" -- "$directory/messages" 2>/dev/null || :
