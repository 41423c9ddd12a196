# The beginning of the lines that set up the environment of what runs as the login; those of the inventory follow. A login shell runs it.
if [ -n "${HVDCTL_ACTIVE-}" ] && [ "$(command -v python3)" != "${HVDCTL_ACTIVE#*=}/bin/python3" ]; then
  export "${HVDCTL_ACTIVE?}" PATH="${HVDCTL_ACTIVE#*=}/bin:$PATH"
fi
unset HVDCTL_ACTIVE
hvdctl_fail() { # LINE REASON
  printf 'hvdctl: activate: %s: %s\n' "$1" "$2" >&2
  exit 78
}
# keeps standard error for what a line that calls `module` has printed until it ended the shell; such a line writes it to a file
hvdctl_listen() {
  exec 7>&2
  trap 'cat "$HVDCTL_PLACE/messages" >&7; rm -f "$HVDCTL_PLACE/messages"' EXIT
}
# passes on what a line that calls `module` has printed on standard error: old versions of that command print an error and end with 0
hvdctl_module() { # CODE LINE
  trap - EXIT
  exec 7>&-
  hvdctl_reason=
  while IFS= read -r hvdctl_message || [ -n "$hvdctl_message" ]; do
    printf '%s\n' "$hvdctl_message" >&2
    case ${hvdctl_message#"${hvdctl_message%%[! ]*}"} in
    ERROR:* | *'('[0-9]*'):ERROR:'* | 'Lmod has detected the following error'*)
      hvdctl_reason='exit code 0, but it printed an error'
      ;;
    esac
  done <"$HVDCTL_PLACE/messages"
  rm -f "$HVDCTL_PLACE/messages"
  [ "$1" = 0 ] || hvdctl_reason="exit code $1"
  [ -z "$hvdctl_reason" ] || hvdctl_fail "$2" "$hvdctl_reason"
}
