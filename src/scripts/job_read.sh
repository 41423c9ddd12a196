# What has come to a job's log since a byte. Wants: jobs_dir, id, offset.
[ -e "$jobs_dir/$id/log" ] || exit 0
exec tail -c "+$((offset + 1))" "$jobs_dir/$id/log"
