# Removes the files of the cluster's own Slurm, and the environment of the jobs that were in its queue, which may be secret. Appended to
# node/close.sh and node/permissions.sh. Variables: directory, jobs_dir.
[ -d "$directory" ] || exit 0
refuse_exposed "$directory"
refuse_exposed "$jobs_dir"
for job in "$directory"/jobs/*.json; do
  job=${job##*/}
  rm -f -- "$jobs_dir/${job%.json}/env.json" "$jobs_dir/${job%.json}"/env.*.json
done
rm -rf -- "$directory" || exit
rmdir -- "${directory%/*}" 2>/dev/null || :
