# Waits until a job of Slurm has its nodes or has ended: then its directory says so. Appended to process/common.sh and
# job/directory.sh. Variables: run_dir, jobs_dir, job (its id), looks (how often it is looked for), pause (seconds between two looks).
# not every sleep knows fractions of a second
sleep "$pause" 2>/dev/null || { sleep 1; exit 0; }
enter "$job" 2>/dev/null || exit 0
looked=1
while [ "$looked" -lt "$looks" ]; do
  # a network file system remembers what was in the directory
  ls >/dev/null || exit 0
  [ ! -e result.json ] || exit 0
  ! { open_regular job.json && grep -q '"is_placed": *true' <&5; } 2>/dev/null || exit 0
  looked=$((looked + 1))
  sleep "$pause"
done
