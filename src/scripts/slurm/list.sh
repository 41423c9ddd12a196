# Prints what was submitted to Slurm, one a line: id, when it was created, state, the number of its job, what Slurm says of that, with `|`
# between its parts and `_` for spaces, and its labels. Appended to process/common.sh and slurm/common.sh. Variables: run_dir.
# While Slurm does not answer, what is recorded here is listed all the same: of jobs that have not ended the state is UNKNOWN, with the reason.
silent=''
all=$(queue 2>&1) || silent=$(printf '%s\n' "${all:-squeue has failed}" | head -n 1 | tr '|' ' ')
find_silent() {
  number='' now='' line=''
  { read -r number <"$directory/job"; } 2>/dev/null || return 0
  now=UNKNOWN line="$number|$now|$silent|"
}
stat -c '%Y %n' "$run_dir"/*/labels 2>/dev/null | while read -r created file; do
  directory=${file%/labels}
  { read -r id <"$directory/id" && IFS= read -r labels <"$file"; } 2>/dev/null || continue
  { read -r now <"$directory/ended" && read -r number <"$directory/job" && line=; } 2>/dev/null ||
    if [ -n "$silent" ]; then find_silent; else find_job "$id" "$all"; fi
  said=${line%|*}
  if [ -z "$number" ]; then
    is=created said=-
  elif has_ended "$now"; then
    is=exited said="$number|$now"
    note_end "$now"
  else
    case $now in
    PENDING | CONFIGURING | REQUEUED | REQUEUE_HOLD | REQUEUE_FED | SPECIAL_EXIT | RESV_DEL_HOLD) is=queued ;;
    *) is=running ;;
    esac
    [ -n "$said" ] || said="$number|$now"
  fi
  case $said in *' '*) said=$(printf '%s' "$said" | tr ' ' _) ;; esac
  printf '%s %s %s %s %s\n' "$id" "$created" "$is" "$said" "$labels"
done
