# What one node is, a "KEY VALUE" line each; read by core/facts.rs. Wants: ssh_dir. Changes nothing.
say() { printf '%s\n' "$*"; }

say hostname "$(uname -n)"
say cores "$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"
[ -z "${HVDCTL_ADDRESS:-}" ] || say ssh "$HVDCTL_ADDRESS"
ip -o addr show up 2>/dev/null | while read -r _ name family address _; do
  case $family in inet | inet6) say addr "$name $address" ;; esac
done
if command -v nvidia-smi >/dev/null 2>&1; then
  say nvidia-smi yes
  # a driver that hangs must not take the whole look with it
  timeout 20 nvidia-smi -L 2>/dev/null | while IFS= read -r line; do say gpu "$line"; done
fi

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
