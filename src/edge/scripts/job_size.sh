# How many bytes a run's log has on this node. Wants: jobs_dir, id.
stat -c %s "$jobs_dir/$id/log" 2>/dev/null || echo 0
