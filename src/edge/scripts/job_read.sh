# What has come to a run's log since a byte. Wants: jobs_dir, id, offset.
exec tail -c "+$((offset + 1))" "$jobs_dir/$id/log"
