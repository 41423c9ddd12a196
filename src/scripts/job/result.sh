# Prints the result of a job. If the job supervisor recorded none, records and prints the given one, if any. Appended to job/directory.sh.
# Variables: jobs_dir, id, result (JSON, or nothing).
set -eu
umask 077
enter "$id"
regular result.json || [ -n "$result" ] || exit 0
regular result.json || printf '%s\n' "$result" | put result.json
open_regular result.json
cat <&5
