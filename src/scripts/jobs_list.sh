# The jobs that this node knows of: what job.json, result.json, attempts.json and members.json say, each on one line behind its path, and how many ranks have
# started here. Wants: jobs_dir.
[ -d "$jobs_dir" ] || exit 0
cd "$jobs_dir" || exit
find . -mindepth 2 -maxdepth 2 -name job.json -exec grep -H '' {} +
find . -mindepth 2 -maxdepth 2 -name result.json -exec grep -H '' {} +
find . -mindepth 2 -maxdepth 2 -name attempts.json -exec grep -H '' {} +
find . -mindepth 2 -maxdepth 2 -name members.json -exec grep -H '' {} +
find . -mindepth 2 -maxdepth 2 -name states -exec grep -Hc ' s $' {} +
:
