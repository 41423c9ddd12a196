# before the time limit Slurm sends USR2: the ranks get SIGTERM, and time to save
hvdctl_ending=
trap 'hvdctl_ending=1' TERM
trap 'hvdctl_ending=1; END_RANKS' USR2
for ((hvdctl_attempt = 0; ; hvdctl_attempt++)); do
  start &
  # a signal ends `wait`, but not the ranks
  while wait $!; kill -0 $! 2>/dev/null; do :; done
  wait $!
  hvdctl_code=$?
  if [ "$hvdctl_code" = 0 ] || [ -n "$hvdctl_ending" ] || [ "$hvdctl_attempt" -ge "$hvdctl_restarts" ]; then break; fi
  echo "the ranks have failed with exit code $hvdctl_code; restart $((hvdctl_attempt + 1)) of $hvdctl_restarts" >&2
  sleep "$hvdctl_pause" &
  wait $!
  # it may have come during the pause
  if [ -n "$hvdctl_ending" ]; then
    kill $! 2>/dev/null
    break
  fi
  hvdctl_pause=$((hvdctl_pause < 150 ? hvdctl_pause * 2 : 300))
done
exit "$hvdctl_code"
