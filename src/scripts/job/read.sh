# Prints a job's log from a byte offset. Appended to job/directory.sh. Variables: jobs_dir, id, offset.
{ enter "$id" && regular log; } 2>/dev/null || exit 0
exec tail -c "+$((offset + 1))" log
