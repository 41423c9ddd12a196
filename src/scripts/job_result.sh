# Says how a job ended, as its job supervisor wrote it down; where there is no such record, the given one is written and said. Wants:
# jobs_dir, id, result (JSON).
set -eu
cd "$jobs_dir/$id"
if [ ! -e result.json ]; then
  printf '%s\n' "$result" >result.json.new
  mv -f result.json.new result.json
fi
cat result.json
