# Prints a job's log from a byte offset. Variables: jobs_dir, id, offset.
[ -e "$jobs_dir/$id/log" ] || exit 0
exec tail -c "+$((offset + 1))" "$jobs_dir/$id/log"
