# Prints the result of a job. If the job supervisor recorded none, records and prints the given one. Variables: jobs_dir, id, result
# (JSON).
set -eu
cd "$jobs_dir/$id"
if [ ! -e result.json ]; then
  printf '%s\n' "$result" >result.json.new
  mv -f result.json.new result.json
fi
cat result.json
