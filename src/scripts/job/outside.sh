# Prints the jobs that have written files outside the mounts of their containers here, or may have (outside.py): `outside ID` each.
# Appended to job/directory.sh. Variables: jobs_dir.
for file in "$jobs_dir"/*/outside; do
  if regular "$file" && [ -s "$file" ]; then
    file=${file%/outside}
    printf 'outside %s\n' "${file##*/}"
  fi
done
