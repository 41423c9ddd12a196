# Appended to process/common.sh. Prints the end of what a process has written. Variables: which (its name or id), lines.
must_find "$which"
tail -n "$lines" -- "$directory/output"
