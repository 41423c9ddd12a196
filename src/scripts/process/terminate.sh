# Appended to process/common.sh. Sends SIGTERM to the main process of a process; there may be none. Variables: which (its name or id).
if find_process "$which" && is_running "$directory"; then kill -TERM "$pid"; fi
exit 0
