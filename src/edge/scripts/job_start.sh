# Lays a run's folder. Wants: jobs_dir, id, files ("MODE NAME BASE64" a line).
set -eu
umask 022
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
