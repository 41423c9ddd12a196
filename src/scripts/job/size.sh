# Prints how many bytes a job's log has on this node, and how many blocks of which size are allocated. Variables: jobs_dir, id.
[ -e "$jobs_dir/$id/log" ] || { echo 0 0 1; exit; }
exec stat -c '%s %b %B' "$jobs_dir/$id/log"
