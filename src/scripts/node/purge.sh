# Appended to keys/lock.sh. Removes what hvdctl has left on this node for a cluster, except for its keys, which keys/push.sh has removed:
# uploaded projects, records of jobs, bandwidths of earlier benchmarks, ledgers, and directories that are then empty. Variables: ssh_dir,
# projects_dir, jobs_dir, data_dir, run_dir (nothing where containers run), cluster. Another cluster may use the same directories. After an error it still removes the rest.
failed=0
if [ -d "$ssh_dir" ]; then
  # files of an interrupted push may have a private key
  (cd "$ssh_dir" && alone) || failed=1
fi
for known in "$projects_dir"/.*"@$cluster"; do
  [ -d "$known" ] || continue
  name=${known##*/.}
  name=$projects_dir/${name%"@$cluster"}
  # the separate directories of jobs
  for list in "$known"/shipped+*; do
    if rm -rf "${name:?}+${list##*+}"; then rm -f "$list" || failed=1; else failed=1; fi
  done
  # last, so that a second attempt knows what is left
  if rm -rf "${name:?}"; then rm -rf "$known" || failed=1; else failed=1; fi
done
# the worker that jobs share is gone
for job in "$jobs_dir"/* "$jobs_dir"/.back@*; do
  [ -h "$job" ] || continue
  case $(readlink -- "$job") in ".worker@$cluster/"*) rm -f -- "$job" || failed=1 ;; esac
done
rm -rf "$jobs_dir/.worker@$cluster" || failed=1
for record in "$jobs_dir"/*/job.json; do
  if [ ! -e "$record" ] || [ -h "${record%/job.json}" ]; then continue; fi
  # a process of the job has put something else there
  if [ ! -f "$record" ]; then failed=1 && continue; fi
  # an earlier agent of the own Slurm has written a space
  grep -qF -e "\"cluster\":\"$cluster\"" -e "\"cluster\": \"$cluster\"" "$record"
  case $? in
  0) rm -rf "${record%/job.json}" || failed=1 ;;
  1) ;;
  # it may belong to this cluster, and grep has printed why it cannot be read
  *) failed=1 ;;
  esac
done
rm -f "$jobs_dir/.drained@$cluster" "$jobs_dir/.py-spy@$cluster" "$jobs_dir/.bench@$cluster" "$jobs_dir"/.bench.*@"$cluster" "$jobs_dir/.ledger@$cluster" \
  "$jobs_dir/.ledger.new@$cluster" "$jobs_dir/.ledger.lock@$cluster" || failed=1
# a directory that is not empty has files of others
rm -f "$ssh_dir.lock" || failed=1
for dir in "$ssh_dir" "$projects_dir" "$jobs_dir" "$data_dir" "${ssh_dir%/*}"; do rmdir "$dir" 2>/dev/null || :; done
# of processes of a login: what was cut off, and a mark with which the lease removes the rest (lease/hold.sh)
if [ -n "$run_dir" ]; then
  rm -rf "$run_dir"/s-* "$run_dir"/.new.* "$run_dir"/.old.* || failed=1
  if [ -d "$run_dir/hvdctl" ]; then : >"$run_dir/hvdctl/purged"; fi
fi
exit "$failed"
