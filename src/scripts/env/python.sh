# Appended to env/common.sh and env/activate.sh. Variables: python (a version, a program, or nothing).
# shellcheck disable=SC2034 # the scripts that follow read what it sets

# sets `uv` to the program, or to nothing, and `uv_version`
find_uv() {
  for uv in "$(command -v uv)" "$HOME/.local/bin/uv" "$HOME/.cargo/bin/uv"; do
    uv_version=$("$uv" --version 2>/dev/null </dev/null) || continue
    uv_version=${uv_version#uv }
    uv_version=${uv_version%% *}
    return
  done
  uv=
}

# sets `interpreter` to the path of the Python that was asked for, or to nothing, and `version`. What does not run is
# none: pyenv has stand-ins for versions that it is not set to
find_python() {
  interpreter='' wanted=''
  case $python in
  '') set -- python3 python ;;
  [0-9]*)
    wanted=$python.
    set -- "python$python" "python${python%.*}" python3 python
    ;;
  *) set -- "$python" ;;
  esac
  code='import sys; print("%d.%d.%d" % sys.version_info[:3], sys.executable)'
  for candidate; do
    found=$("$candidate" -c "$code" 2>/dev/null </dev/null) || continue
    case ${found%% *}. in "$wanted"*) ;; *) continue ;; esac
    version=${found%% *} interpreter=${found#* }
    return
  done
  # one that uv has installed
  [ -n "$uv" ] && [ -n "$wanted" ] || return 0
  candidate=$("$uv" python find --no-python-downloads "$python" 2>/dev/null </dev/null) || return 0
  found=$("$candidate" -c "$code" 2>/dev/null </dev/null) || return 0
  version=${found%% *} interpreter=${found#* }
}
