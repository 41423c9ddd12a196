# Appended to env/common.sh, env/activate.sh and env/python.sh. Prints what a node has for a virtualenv, in lines
# "KEY VALUE" that environment/probe.rs reads. Changes nothing. Variables: name.
say() { printf '%s\n' "$*"; }

# the distribution, for hints (os-release(5))
(
  for file in /etc/os-release /usr/lib/os-release; do
    # shellcheck disable=SC1090 # it is written for shells
    if [ -r "$file" ] && . "$file"; then
      say os "${ID:-} ${ID_LIKE:-}"
      break
    fi
  done
)
activate || exit
find_uv
[ -z "$uv" ] || say uv "$uv_version"
find_python
if [ -n "$interpreter" ]; then
  say python "$version" "$interpreter"
  cause=$("$interpreter" -c 'import venv, ensurepip' 2>&1 </dev/null) ||
    say no-venv "$(printf '%s\n' "$cause" | tail -n 1)"
fi
if is_foreign "$name"; then say foreign; fi
find_build "$name"
if [ -n "$build" ]; then
  sed 's/^/made /' "$build/hvdctl.env" || exit
  sed 's/^/package /' "$build/hvdctl.packages" || exit
  if version=$(build_version); then say runs "$version"; fi
fi
for wheel in "$envs/.wheels/$name"/*/*.whl; do
  [ ! -f "$wheel" ] || say wheel "${wheel#"$envs/.wheels/$name/"}"
done
