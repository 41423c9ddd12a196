# Appended to env/common.sh, before env/python.sh. Variables: activate (lines of bash; may be empty).

# takes over the environment that the lines set up in a login shell, as ranks have it
activate() {
  [ -n "$activate" ] || return 0
  shell=bash
  command -v bash >/dev/null || shell="sh"
  # shellcheck disable=SC2016 # it is the other shell's
  exported=$(
    "$shell" -l -c '
      IFS="
"
      set -f
      for line in $1; do
        unset IFS
        set +f
        eval "$line" || { echo "activate: $line: exit code $?" >&2; exit 1; }
      done
      exec sh -c "export -p" >&3' "$shell" "$activate" 3>&1 >&2 </dev/null
  ) || return
  eval "$exported"
}
