# Prints a piece of a job's log. Appended to job/directory.sh. Variables: jobs_dir, id, offset, length (in bytes).
{ enter "$id" && regular log; } 2>/dev/null || exit 0
tail -c "+$((offset + 1))" log | head -c "$length"
