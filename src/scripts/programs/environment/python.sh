# Becomes a program of hvdctl's in the Python of the ranks, isolated from what the environment of ranks says of that (python(1), -I).
# Arguments: the program and its own. environment.py is the other half.
command -v python3 >/dev/null || {
  echo "python3: not found, with this PATH: $PATH" >&2
  exit 127
}
# supervisors need it, and its libffi may be one of the module's libraries
set_aside_unless_needed python3 -I -S -c 'import ctypes'
exec python3 -I -X utf8 "$@"
