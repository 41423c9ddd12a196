# Stores standard input as py-spy, for a job and for all that begin here later (job/start.sh). Appended to node/close.sh,
# node/permissions.sh and job/directory.sh. Variables: jobs_dir, cluster, id.
set -eu
umask 077
refuse_exposed "$jobs_dir"
kept=$jobs_dir/.py-spy@$cluster
cd "$jobs_dir"
put "${kept##*/}"
enter "$id"
put py-spy <"$kept"
