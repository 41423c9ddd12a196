# Adds nodes to a running elastic job, on the node of its launcher. Appended to job/directory.sh. Variables: jobs_dir, id, joining (the
# nodes, as launch.json has them), record (job.json with them). Succeeds if the job supervisor has accepted them (membership.py); if not,
# nothing has changed.
set -eu
umask 077
enter "$id"
rm -f joining.json joining.json.taken
printf '%s' "$joining" | put joining.json
tries=0
while [ -e joining.json ] && [ "$tries" -lt 100 ]; do
  tries=$((tries + 1))
  sleep 0.2
done
# either this or the renaming by the job supervisor succeeds, never both, so a failure is no error
if rm joining.json 2>/dev/null || [ -e joining.json ]; then
  echo "the job supervisor did not accept the nodes within 20 s" >&2
  exit 1
fi
# the nodes have joined even if this fails, because their own records say so too
printf '%s' "$record" | put job.json || :
