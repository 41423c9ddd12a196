# Appended to env/common.sh, before env/python.sh. Variables: activate (lines of bash; may be empty).

# takes over the environment that the lines set up in a login shell, as ranks have it
activate() {
  [ -n "$activate" ] || return 0
  shell=bash
  command -v bash >/dev/null || shell="sh"
  # shellcheck disable=SC2016 # it is the other shell's
  exported=$(
    HVDCTL_LINES=$activate "$shell" -l -c '
      IFS="
"
      set -f
      for line in $HVDCTL_LINES; do
        unset IFS
        set +f
        eval "$line" || { echo "activate: $line: exit code $?" >&2; exit 1; }
      done
      exec env -u HVDCTL_LINES -u UID -u EUID -u PPID -u SHELLOPTS -u BASHOPTS sh -c "export -p" >&3' 3>&1 >&2 </dev/null
  ) || return
  eval "$exported"
}
