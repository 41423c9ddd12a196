# Prints the result of a job. If the job supervisor recorded none, records and prints the given one. Appended to job/directory.sh.
# Variables: jobs_dir, id, result (JSON).
set -eu
umask 077
enter "$id"
regular result.json || printf '%s\n' "$result" | put result.json
open_regular result.json
cat <&5
