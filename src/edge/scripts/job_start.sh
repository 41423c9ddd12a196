# Lays a run's folder and the project's. Wants: jobs_dir, id, project_dir (may be empty), files ("MODE NAME BASE64" a line;
# none: this node has no ranks, and gets no folder of the run). Says "new" where the project's folder was not there.
set -eu
umask 022
if [ -n "$project_dir" ] && [ ! -d "$project_dir" ]; then
  mkdir -p "$project_dir"
  echo new
fi
[ -n "$files" ] || exit 0
mkdir -p "${jobs_dir%/*}"
# what ranks print may be nobody else's business
umask 077
mkdir -p "$jobs_dir/$id"
cd "$jobs_dir/$id"
printf '%s' "$files" | while read -r mode name text; do
  printf '%s' "$text" | base64 -d >"$name"
  chmod "$mode" "$name"
done
: >>log
