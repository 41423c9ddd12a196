# Prints a piece of a file of a job. Appended to job/directory.sh. Variables: jobs_dir, id, file, offset, length (in bytes).
{ enter "$id" && open_regular "$file"; } 2>/dev/null || exit 0
tail -c "+$((offset + 1))" <&5 | head -c "$length"
