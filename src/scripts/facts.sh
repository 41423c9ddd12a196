# What one node is, a "KEY VALUE" line each, behind machine.sh, marked.sh and killed.sh; read by node/facts.rs. Wants: ssh_dir,
# jobs_dir, projects_dir, cluster, port. Changes nothing. Fails if a tool does: that there is nothing must be known.
# who listens on the workers' port: ADDRESS PID USER CONTAINER PROGRAM
listeners=$(ss -Hltnp "sport = :$port") || exit
printf '%s' "${listeners:+$listeners
}" | while read -r _ _ _ local _ users; do
  pid=- user=- container=- program=-
  case $users in
  *pid=*)
    pid=${users#*pid=}
    pid=${pid%%[!0-9]*}
    user=$(stat -c %U "/proc/$pid" 2>/dev/null)
    container=$(grep -soE '[0-9a-f]{64}' "/proc/$pid/cgroup" | tail -n 1)
    read -r program 2>/dev/null <"/proc/$pid/comm"
    ;;
  esac
  say listener "$local" "$pid" "${user:--}" "${container:--}" "$program"
done

# the ports that are taken: PORT…
ports=$(ss -Hltn) || exit
say ports "$(printf '%s\n' "$ports" | sed -n 's/^\([^ ]* *\)\{3\}[^ ]*:\([0-9]*\) .*/\2/p' | sort -nu | tr '\n' ' ')"

# room: WHAT KILOBYTES FOLDER, of the next directory above that is there
there() {
  directory=$1
  until [ -d "$directory" ]; do directory=${directory%/*} directory=${directory:-/}; done
}
there "$jobs_dir"
jobs=$directory
there "$projects_dir"
rooms=$(stat -f -c '%a %S %n' -- "$jobs" "$directory") || exit
printf '%s\n' "$rooms" | {
  read -r blocks of jobs && say disk jobs "$((blocks * of / 1024))" "$jobs"
  read -r blocks of directory && say disk projects "$((blocks * of / 1024))" "$directory"
}

# processes of jobs: JOB PID CONTAINER CLUSTER, and whether they were killed
files=$(marked '^HVDCTL_JOB=' /proc/[0-9]*/environ) || exit
for file in $files; do
  pid=$(pid_of "$file")
  run=$({ tr '\0' '\n' <"$file"; } 2>/dev/null | sed -n 's/^HVDCTL_JOB=//p' | head -n 1)
  case $run in '' | *[!0-9A-Za-z-]*) continue ;; esac
  container=$(grep -soE '[0-9a-f]{64}' "/proc/$pid/cgroup" | tail -n 1)
  owner=$(sed -n 's/.*"cluster":"\([^"]*\)".*/\1/p' "$jobs_dir/$run/job.json" 2>/dev/null)
  if killed "$pid"; then killed=killed; else killed=-; fi
  say rank "$run" "$pid" "${container:--}" "${owner:--}" "$killed"
done
# this cluster's jobs that have not ended here: what ends a job on a node removes env.json. JOB RECORD
for record in "$jobs_dir"/*/job.json; do
  directory=${record%/job.json}
  if [ -e "$directory/env.json" ] && [ ! -e "$directory/result.json" ] && grep -qsF "\"cluster\":\"$cluster\"" "$record"; then
    say open "${directory##*/} $(head -n 1 "$record")"
  fi
done
[ ! -e "$jobs_dir/.drained@$cluster" ] || say drained "$(head -n 1 "$jobs_dir/.drained@$cluster")"
say clock "$(date +%s.%N)"
[ -d "$ssh_dir" ] || exit 0
cd "$ssh_dir" || exit 0
say dir "$(stat -c '. %a %u:%g' .)"
for file in *; do
  [ -f "$file" ] || continue
  # names with a space are nobody's key files, and the format has no place for them
  case $file in *[!A-Za-z0-9._-]*) continue ;; esac
  say file "$(stat -c '%n %a %u:%g' "$file")"
  case $file in
  *.pub | authorized_keys | known_hosts)
    # `|| [ -n … ]` takes a last line without a newline too
    while IFS= read -r line || [ -n "$line" ]; do say text "$file $line"; done <"$file"
    ;;
  esac
done
