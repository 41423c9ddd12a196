# Writes down how a run ended. Wants: jobs_dir, id, result (JSON).
set -eu
[ -d "$jobs_dir/$id" ] || exit 0
cd "$jobs_dir/$id"
printf '%s\n' "$result" >result.json.new
mv -f result.json.new result.json
