# Prints files of a job on the node of its launcher, each on a line: its name and its contents in base64. Wants: jobs_dir, id, names
# (in the job's directory, separated by spaces), origin (the path of the file with the project's origin, printed as `origin`).
cd "$jobs_dir/$id" || exit
for name in $names; do
  [ ! -f "$name" ] || printf '%s %s\n' "$name" "$(base64 -w 0 "$name")"
done
[ ! -f "$origin" ] || printf 'origin %s\n' "$(base64 -w 0 "$origin")"
