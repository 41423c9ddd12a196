# before the time limit Slurm sends USR2: the ranks get SIGTERM, and time to save. Those that are no step are children of this script,
# which gets the signal as well, as from scancel
hvdctl_ending=
trap 'hvdctl_ending=1' TERM
trap 'hvdctl_ending=1; scancel --full --signal=TERM "$SLURM_JOB_ID"' USR2
for ((hvdctl_attempt = 0; ; hvdctl_attempt++)); do
  start &
  # a signal ends `wait`, but not the ranks
  while wait $!; hvdctl_code=$?; kill -0 $! 2>/dev/null; do :; done
  if [ "$hvdctl_code" = 0 ] || [ -n "$hvdctl_ending" ] || [ "$hvdctl_attempt" -ge "$hvdctl_restarts" ]; then
    exit "$hvdctl_code"
  fi
  echo "the ranks have failed with exit code $hvdctl_code; restart $((hvdctl_attempt + 1)) of $hvdctl_restarts" >&2
  sleep "$hvdctl_pause"
done
