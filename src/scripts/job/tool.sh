# Stores standard input as py-spy, for a job and for all that begin here later (job/start.sh). Appended to job/directory.sh. Variables:
# jobs_dir, cluster, id.
umask 077
kept=$jobs_dir/.py-spy@$cluster
cd "$jobs_dir" && put "${kept##*/}" && enter "$id" && put py-spy <"$kept"
