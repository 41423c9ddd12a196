# Appended to process/common.sh. The jobs of Slurm that run what process/create.sh has created. The directory of each has its number in the
# file `job`, and the name of a job ends with the id. Within an allocation it is a step of that; then there is a file `step` with the name of
# its node. Settings of the user's own commands would hide jobs, or let sbatch do something else than submit one.
for variable in $(env | sed -n 's/^\(\(SQUEUE\|SCANCEL\|SINFO\|SACCT\)_[A-Z0-9_]*\)=.*/\1/p') SBATCH_JOB_NAME SBATCH_WAIT SBATCH_ARRAY_INX \
  SBATCH_CLUSTERS SLURM_CLUSTERS SLURM_TIME_FORMAT; do
  unset "$variable"
done

# prints the first of Slurm's commands that is not in PATH; fails if there is none
missing() {
  for program in sbatch squeue scancel scontrol srun; do
    command -v "$program" >/dev/null || {
      echo "$program"
      return
    }
  done
  return 1
}
# Sites set PATH in /etc/profile.d, in ~/.bash_profile or with a module that is loaded there, which only login shells read. Then what such a
# shell of the user has is taken over, and kept for the scripts of the next hour and for jobs (allocation.py) in a file. Modules also set
# SLURM_CONF and the path of libraries.
kept=$state_dir/slurm.environment
take_over() { # the lines of that file
  while IFS= read -r pair; do
    case $pair in
    PATH=*) PATH=$PATH:${pair#*=} ;;
    *=*) export "${pair%%=*}=${pair#*=}" ;;
    esac
  done
}
ask_login_shell() { # SHELL
  # its first letter makes it a login shell, also where it has no option -l (tcsh). It may wait for a terminal that it does not have
  # shellcheck disable=SC2016 # they are the other shell's
  setsid timeout 20 bash -c 'exec -a "-${0##*/}" "$0" -c "$1"' "$1" \
    'env | sed -n "s/^\(PATH\|LD_LIBRARY_PATH\|SLURM_CONF\)=/hvdctl: &/p"' </dev/null 2>/dev/null | sed -n 's/^hvdctl: //p'
}
find_commands() {
  tried=
  missing >/dev/null || return 0
  [ -z "$(find "$kept" -mmin -60 2>/dev/null)" ] || take_over <"$kept"
  for login_shell in "${SHELL:-bash}" bash; do
    missing >/dev/null || return 0
    # shellcheck disable=SC2034 # slurm/check.sh reads it
    tried=$login_shell
    found=$(ask_login_shell "$login_shell")
    take_over <<FOUND
$found
FOUND
    missing >/dev/null || { printf '%s\n' "$found" >"$kept.$$" && mv -f "$kept.$$" "$kept"; } 2>/dev/null
  done
}
find_commands

# prints the user's jobs in the queue, one a line: number, state, reason, when submitted, when started or expected to (in seconds since the
# epoch), limit, and name
queue() {
  SLURM_TIME_FORMAT=%s timeout 20 squeue --all --noheader --user="$(id -u)" --format='%i|%T|%r|%V|%S|%l|%j' || return
  for file in "$run_dir"/*/step; do
    [ -e "$file" ] || continue
    SLURM_TIME_FORMAT=%s squeue --all --noheader --steps --user="$(id -u)" --format='%i|RUNNING|None|%S|%S||%j'
    return
  done
}
# sends a signal to the main program of a step within an allocation
signal_step() { # SIGNAL
  { read -r first <"$directory/step" && read -r pid _ <"$directory/pid"; } || return
  srun --jobid="${number%%.*}" --nodes=1 --ntasks=1 --nodelist="$first" --overlap --mpi=none --quiet kill "-$1" "$pid"
}
# sets `line` to that of a job in the queue, by its number or else its name, and `number` and `now`, its state. Where it is not in the queue
# they are the number in the file `job`, if there is one, and what else Slurm knows of that: how it has ended, `gone`, or that it goes on,
# because the queue was read before it was submitted
find_job() { # ID QUEUE
  number='' now='' line=''
  { read -r number <"$directory/job"; } 2>/dev/null
  # without a program for each job: the queue may be long
  IFS='
'
  set -f
  for entry in $2; do
    case $entry in "${number:-none}|"* | *".$1")
      line=$entry
      break
      ;;
    esac
  done
  set +f
  unset IFS
  if [ -n "$line" ]; then
    now=${line#*|} number=${line%%|*}
    now=${now%%|*}
  elif [ -n "$number" ]; then
    ask_job "$number"
  fi
}
# `is_late` is set if the reason of one that is gone may still come
ask_job() { # NUMBER
  is_late=
  case $1 in *.*)
    # Slurm keeps nothing of a step that has ended
    shown=$(squeue --all --noheader --steps="$1" --format='|%i|' 2>&1)
    case $shown in
    *"|$1|"*) now=RUNNING ;;
    '' | *'nvalid job id'*) if [ -e "$directory/done" ]; then now=gone; else now=FAILED; fi ;;
    *) now=UNKNOWN ;;
    esac
    return
    ;;
  esac
  shown=$(scontrol --oneliner show job "$1" 2>&1)
  now=$(printf '%s\n' "$shown" | sed -n 's/.* JobState=\([A-Z_]*\).*/\1/p' | head -n 1)
  [ -z "$now" ] || return 0
  case $shown in
  # it forgets them after some minutes. Accounting may be off, late, or not answer. `CANCELLED by 1000`
  *'nvalid job id'*)
    now=$(sacct --noheader --allocations --parsable2 --jobs="$1" --format=State 2>&1 | head -n 1)
    case $now in *disabled* | *'not found'*) now=gone ;; *) now=${now%% *} ;; esac
    [ "$now" = gone ] || { has_ended "$now" && [ -n "$now" ]; } || is_late=1 now=gone
    ;;
  *) now=UNKNOWN ;;
  esac
}
# keeps how a job has ended, so that Slurm is not asked again. The reason of one that is gone is asked for an hour long, unless the job has
# recorded it itself
note_end() { # STATE
  [ ! -e "$directory/ended" ] || return 0
  if [ "$1" = gone ] && [ -n "$is_late" ] && [ ! -e "$directory/done" ]; then
    [ -e "$directory/gone" ] || : >"$directory/gone"
    [ -n "$(find "$directory/gone" -mmin +60)" ] || return 0
  fi
  printf '%s\n' "$1" >"$directory/ended"
}
# tests whether a job has ended, by its state
has_ended() { # STATE
  case $1 in
  '' | gone | BOOT_FAIL | CANCELLED | COMPLETED | DEADLINE | FAILED | LAUNCH_FAILED | NODE_FAIL | OUT_OF_MEMORY | PREEMPTED | RECONFIG_FAIL | \
    REVOKED | TIMEOUT) ;;
  *) return 1 ;;
  esac
}
