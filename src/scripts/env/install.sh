# Appended to env/common.sh, env/activate.sh and env/python.sh. Makes a virtualenv and installs packages. env/create.sh
# runs it in a session of its own; its argument is the directory. Lines that begin with "hvdctl: " are for
# environment/make.rs, all others are pip's or uv's. Variables: name, form (pylock or requirements), requirements (the
# file), constraints, wheels (a line "SHA-256 FILE" for each; if there are some, nothing is downloaded), exact (not
# empty: the file has all packages, also those that others need).
exec 2>&1
umask 077
build=$1
say() { printf 'hvdctl: %s\n' "$*"; }

activate || exit
# what the login, its modules or pip's settings say of another place must not take effect here
unset VIRTUAL_ENV CONDA_PREFIX PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_ROOT UV_SYSTEM_PYTHON
PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_PROGRESS_BAR=off
# a home may have a quota, and /tmp may be small
UV_CACHE_DIR=${UV_CACHE_DIR:-$envs/.cache/uv} PIP_CACHE_DIR=${PIP_CACHE_DIR:-$envs/.cache/pip} TMPDIR=$build/.work
UV_NO_PROGRESS=1
export PIP_USER PIP_REQUIRE_VIRTUALENV PIP_DISABLE_PIP_VERSION_CHECK PIP_NO_INPUT PIP_PROGRESS_BAR
export UV_CACHE_DIR PIP_CACHE_DIR TMPDIR UV_NO_PROGRESS

# replaces the shell's standard input, which has the rest of this script
run() { "$@" </dev/null; }

make_virtualenv() {
  if [ -n "$uv" ]; then
    tool="uv $uv_version"
    say step "creating the virtualenv with $tool"
    if [ -n "$interpreter$python" ]; then
      run "$uv" venv --python "${interpreter:-$python}" --prompt "$name" "$build"
    else
      run "$uv" venv --prompt "$name" "$build"
    fi
  else
    say step "creating the virtualenv with Python $version"
    run "$interpreter" -m venv --prompt "$name" "$build"
  fi
}

# writes the files into the work directory, which is the current one from then on
unpack() {
  mkdir -p "$TMPDIR/wheels" && cd "$TMPDIR" || return
  case $form in
  pylock) file=pylock.toml ;;
  *) file=requirements.txt ;;
  esac
  { printf '%s\n' "$requirements" >"$file" && printf '%s\n' "$constraints" >constraints.txt; } || return
  [ -n "$wheels" ] || return 0
  while read -r hash wheel; do
    ln "$envs/.wheels/$name/$hash/$wheel" wheels/ || cp "$envs/.wheels/$name/$hash/$wheel" wheels/ || return
  done <<WHEELS
$wheels
WHEELS
}

# an earlier pip than 26.1 cannot read pylock.toml
pip_is_old() {
  # shellcheck disable=SC2046 # they are words
  set -- $(run "$build/bin/python" -m pip --version)
  tool="pip ${2:-}"
  case ${2:-0} in
  [0-9].* | 1[0-9].* | 2[0-5].* | 26.0*) return 0 ;;
  esac
  return 1
}

install_with_pip() {
  if pip_is_old && [ "$form" = pylock ]; then
    say step "updating pip"
    run "$build/bin/python" -m pip install --upgrade 'pip>=26.1' || return
    if pip_is_old; then
      echo "$tool cannot read pylock.toml; pip 26.1 and uv can"
      return 1
    fi
  fi
  say step "installing packages with $tool"
  [ -z "$exact" ] || [ "$form" = pylock ] || set -- "$@" --no-deps
  run "$build/bin/python" -m pip install -r "$file" "$@"
}

install_packages() {
  set --
  [ -z "$wheels" ] || set -- --no-index --find-links wheels
  [ -z "$constraints" ] || set -- "$@" -c constraints.txt
  if [ -z "$uv" ]; then
    install_with_pip "$@"
  else
    say step "installing packages with $tool"
    if [ -n "$exact" ]; then
      run "$uv" pip sync --python "$build/bin/python" "$file" "$@"
    else
      run "$uv" pip install --python "$build/bin/python" -r "$file" "$@"
    fi
  fi
}

# the packages by the directories that each of them has. pip and what comes with it are there or not, depending on the
# tool
list_packages() {
  for info in "$build"/lib/python*/site-packages/*.dist-info; do
    info=${info##*/}
    info=${info%.dist-info}
    case $info in '*' | pip-* | setuptools-*) ;; *) printf '%s %s\n' "${info%-*}" "${info##*-}" ;; esac
  done
}

# removes the wheels that are not among these
remove_wheels() {
  for wheel in "$envs/.wheels/$name"/*/; do
    wheel=${wheel%/}
    case $wheels in *"${wheel##*/} "*) ;; *) rm -rf "$wheel" ;; esac
  done
}

find_uv
find_python
{ make_virtualenv && unpack && install_packages; } || exit
say step "finishing"
{ cd "$build" && rm -rf "$TMPDIR" && list_packages | LC_ALL=C sort >hvdctl.packages; } || exit
build_version >hvdctl.version || {
  echo "the Python of the new virtualenv does not run: $("$build/bin/python" -V 2>&1 </dev/null)" >&2
  exit 1
}
remove_wheels
printf 'tool %s\n' "$tool" >hvdctl.tool
