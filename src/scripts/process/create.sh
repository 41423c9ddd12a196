# Appended to process/common.sh. Creates a process, which does not run yet. Variables: new_id, labels, workspace (a directory, or nothing),
# environment (lines of sh), activate (lines of bash), command (a line of sh that sets the arguments), main, begin.
set -e
mkdir -p "$run_dir"
new=$(mktemp -d "$run_dir/.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
write() { printf '%s\n' "$2" >"$new/$1"; } # NAME TEXT
write labels "$labels"
write id "$new_id"
write umask "$login_mask"
write environment.given "$environment"
write activate "$activate"
write command "$command"
write main "$main"
write begin "$begin"
ln -s -- "${workspace:-/}" "$new/workspace"
# what a crash has left of one says neither what it is nor that it runs
there=$run_dir/${new_id%@*}
if [ -d "$there" ] && ! { [ -s "$there/id" ] && [ -s "$there/labels" ]; } && ! is_running "$there"; then rm -rf "$there"; fi
# fails if there is one with this name
if [ -e "$there" ] || ! mv -T -n "$new" "$there" || [ -e "$new" ]; then
  echo "there is a ${new_id%@*} already" >&2
  exit 1
fi
