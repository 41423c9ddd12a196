# Follows a run's log on this node from a byte on. Wants: jobs_dir, id, offset. The first line is this process's id, by
# which job_end.sh stops it, and the node's clock.
echo "$$ $(date +%s.%N)"
exec tail -c "+$((offset + 1))" -f "$jobs_dir/$id/log"
