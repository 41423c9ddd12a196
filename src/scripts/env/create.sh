# Appended to node/marked.sh, env/common.sh and env/change.sh. Makes a virtualenv, as long as standard input is open:
# however hvdctl ends, that is closed. Then all processes that install get SIGTERM, and SIGKILL after 5 s. Exit code 4:
# pip or uv failed, and said why. Lines that begin with "hvdctl: " are for environment/make.rs. Variables: hash (of what
# is asked for), source (where it came from), install (env/install.sh with its variables).

main() {
  command -v setsid >/dev/null || fail "setsid: not found (util-linux)" 127
  make_place
  lock
  if is_foreign "$name"; then fail "$envs/$name is there and was not made by hvdctl"; fi
  find_build "$name"
  remove_others "$build"
  # the same path on all nodes: a launcher passes PATH and VIRTUAL_ENV on to the ranks of other nodes
  build=$builds/$name.$(printf %.6s "$hash")
  if [ -e "$build" ]; then
    used=$(users "$build") || exit
    [ -z "$used" ] || fail "a process runs from it (pid $(printf '%s\n' "$used" | head -n 1))"
    rm -rf "$build" || exit
  fi
  (umask 077 && mkdir "$build") || exit
  trap 'rm -rf "$build"; exit 1' HUP INT TERM
  run_installer "$build" || {
    rm -rf "$build"
    exit 4
  }
  finish || {
    rm -rf "$build"
    exit 1
  }
  remove_others "$build"
}

# runs env/install.sh in a session of its own
run_installer() {
  exec 3<&0
  printf '%s\n' "$install" | setsid sh -s "$1" 3<&- &
  session=$!
  (
    while read -r _; do :; done
    # the group of a session leader has its process id; at first there is no session yet
    kill -TERM "-$session" || kill -TERM "$session"
    n=0
    while [ "$n" -lt 50 ]; do
      kill -0 "-$session" || exit 0
      sleep 0.1
      n=$((n + 1))
    done
    kill -KILL "-$session"
  ) <&3 3<&- 9<&- >/dev/null 2>&1 &
  watch=$!
  exec 3<&-
  wait "$session"
  code=$?
  kill "$watch" 2>/dev/null
  kill -KILL "-$session" 2>/dev/null
  return "$code"
}

finish() {
  version=$(build_version) || {
    echo "the Python of the new virtualenv does not run: $("$build/bin/python" -V 2>&1 </dev/null)" >&2
    return 1
  }
  content=$(sha256sum <"$build/hvdctl.packages") || return
  size=$(du -sk "$build") || return
  size=${size%%[!0-9]*}
  {
    cat "$build/hvdctl.tool"
    printf 'hash %s\npython %s\ncontent %s\nsize %s\n' "$hash" "$version" "${content%% *}" "$((size * 1024))"
    printf 'time %s\nsource %s\n' "$(date +%s)" "$source"
  } >"$build/.hvdctl.env" || return
  rm -f "$build/hvdctl.tool"
  mv -f "$build/.hvdctl.env" "$build/hvdctl.env" || return
  { ln -sfn ".builds/${build##*/}" "$builds/.$name.link" && mv -fT "$builds/.$name.link" "$envs/$name"; } || return
  sed 's/^/hvdctl: made /' "$build/hvdctl.env"
  sed 's/^/hvdctl: package /' "$build/hvdctl.packages"
}

# the shell reads the whole block first: nothing that follows on standard input is a command
main; exit
