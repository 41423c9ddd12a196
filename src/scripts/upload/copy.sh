# Follows fetch/below.sh and upload/common.sh. One more argument: the id of a job. Writes a tar stream of the files that were uploaded for the job, as they
# are now, without the outputs of jobs.
id=$4
work=$name list=$known/shipped
if [ -d "$name+$id" ]; then work=$name+$id list=$known/shipped+$id; fi
[ -f "$list" ] || {
  echo "$projects/$list is missing" >&2
  exit 1
}
{ names <"$list" || abort; } | send_below "$work"
