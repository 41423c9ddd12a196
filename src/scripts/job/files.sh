# Prints files of a job on the node of its launcher, each on a line: its name and its contents in base64. Appended to job/directory.sh.
# Variables: jobs_dir, id, names (in the job's directory, separated by spaces), origin (the path of the file with the project's origin,
# printed as `origin`).
file() { # NAME PATH
  # a file that is removed meanwhile is no error
  open_regular "$2" || return 0
  text=$(base64 -w 0 <&5) || return
  printf '%s %s\n' "$1" "$text"
}
enter "$id" || exit
for name in $names; do file "$name" "$name" || exit; done
file origin "$origin"
