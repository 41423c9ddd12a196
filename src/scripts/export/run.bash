# before the time limit Slurm sends USR2: the ranks get SIGTERM, and time to save
ending=
trap 'ending=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR2
for ((attempt = 0; ; attempt++)); do
  start &
  # a signal ends `wait`, but not the ranks
  while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done
  if [ "$code" = 0 ] || [ -n "$ending" ] || [ "$attempt" -ge "$restarts" ]; then exit "$code"; fi
  echo "the ranks have failed with exit code $code; restart $((attempt + 1)) of $restarts" >&2
  sleep "$pause"
done
