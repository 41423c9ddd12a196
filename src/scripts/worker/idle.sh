# Runs in the worker of a single job, before worker/start.sh, which becomes its sshd: ends that sshd, and with it the container, when
# nothing else has run in the container for some time. Arguments before sshd's: states, idle_limit, start_limit. The job supervisor's
# connections and the job's ranks count as activity; a rank that was cut off stays until its grace period is over. Until the first
# rank has recorded its state in the file `states`, the limit is start_limit seconds, because the project may still be on its way to
# another node; then it is idle_limit.
states=$1 idle_limit=$2 start_limit=$3
shift 3
(
    # $$ becomes sshd, which its parent, the main process (init.py), has started. Process 1 is another one if the image or the engine has an
    # init
    read -r own _ </proc/self/stat
    idle=0 limit=$start_limit
    while [ "$idle" -lt "$limit" ]; do
        sleep 5
        idle=$((idle + 5)) limit=$start_limit
        [ ! -e "$states" ] || limit=$idle_limit
        # of a worker that is a process of the login, only what it has started: connections of its sshd, and what these have left
        if [ -n "${HVDCTL_PROCESS:-}" ]; then
            # shellcheck disable=SC2046 # they have no spaces
            set -- $(grep -lsz "^HVDCTL_PROCESS=$HVDCTL_PROCESS\$" /proc/[0-9]*/environ
                grep -lsx "PPid:[[:space:]]*$$" /proc/[0-9]*/status)
        else
            set -- /proc/[0-9]*
        fi
        for process; do
            process=${process#/proc/}
            case "${process%%/*}" in
            1 | "$$" | "$PPID" | "$own") ;;
            # this search is over
            *) [ ! -e "/proc/${process%%/*}" ] || { idle=0 && break; } ;;
            esac
        done
    done
    kill "$$"
) &
