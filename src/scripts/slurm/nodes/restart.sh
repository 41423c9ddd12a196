# Starts the daemons of this container again, with their new files; what they run goes on. Runs in hslurm, and then in hslurm-agent, which
# notes that it is done. Argument: the directory of the files.
for file in /run/hvdctl-munged.pid /run/hvdctl-slurmctld.pid /run/hvdctl-slurmd.pid /run/hvdctl-agent.pid /run/hvdctl-node.pid; do
  { read -r pid <"$file" && kill "$pid"; } 2>/dev/null || continue
  # a slurmd that cannot register ends minutes later; its jobs outlive it
  tries=0
  while kill -0 "$pid" 2>/dev/null && [ "$(cat "$file" 2>/dev/null)" = "$pid" ]; do
    tries=$((tries + 1))
    case $tries:$file in 50:*slurmd.pid) kill -KILL "$pid" 2>/dev/null || : ;; esac
    [ "$tries" -lt 60 ] || break
    sleep 0.1
  done
done
# hslurm cannot write there
rm -f "$1/.restart" 2>/dev/null || :
