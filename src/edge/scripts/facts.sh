# What one node is, a "KEY VALUE" line each, behind machine.sh; read by core/facts.rs. Wants: ssh_dir, port. Changes
# nothing.
# who listens on the workers' port: ADDRESS PID USER CONTAINER PROGRAM
ss -Hltnp "sport = :$port" 2>/dev/null | while read -r _ _ _ local _ users; do
  pid=- user=- container=- program=-
  case $users in
  *pid=*)
    pid=${users#*pid=}
    pid=${pid%%[!0-9]*}
    user=$(stat -c %U "/proc/$pid" 2>/dev/null)
    container=$(grep -oE '[0-9a-f]{64}' "/proc/$pid/cgroup" 2>/dev/null | tail -n 1)
    read -r program 2>/dev/null <"/proc/$pid/comm"
    ;;
  esac
  say listener "$local" "$pid" "${user:--}" "${container:--}" "$program"
done
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
