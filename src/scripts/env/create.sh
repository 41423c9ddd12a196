# Appended to node/marked.sh, env/common.sh, env/activate.sh and env/change.sh. Makes a virtualenv, as long as standard input is open:
# however hvdctl ends, that is closed. Then all processes that install get SIGTERM, and SIGKILL after 5 s. Exit code 4:
# pip or uv failed, and said why. Lines that begin with "hvdctl: " are for environment/make.rs. Variables: hash (of what
# is asked for), source (where it came from), install (env/install.sh with its variables).

main() {
  command -v setsid >/dev/null || fail "setsid: not found (util-linux)" 127
  make_place
  lock
  if is_foreign "$name"; then fail "$envs/$name exists and was not created by hvdctl"; fi
  find_build "$name"
  remove_others "$build"
  # the same path on all nodes: a launcher passes PATH and VIRTUAL_ENV on to the ranks of other nodes
  build=$builds/$name.$(printf %.6s "$hash") old=
  if [ -e "$build" ]; then
    # an earlier one that is wanted again
    if [ -f "$build/hvdctl.env" ] && [ "$(value hash)" = "$hash" ] && [ "$(build_version)" = "$(value python)" ]; then
      put_in_place && remove_others "$build"
      exit
    fi
    used=$(users "$build") || exit
    [ -z "$used" ] || fail "a process runs from it (pid $(printf '%s\n' "$used" | head -n 1)); hvdctl stop ends a job, hvdctl down the workers"
    old=$builds/.old.$name
    rm -rf "$old" && mv -T "$build" "$old" || exit
  fi
  trap 'undo; exit 1' HUP INT TERM
  (umask 077 && mkdir "$build") || {
    undo
    exit 1
  }
  run_installer "$build" || {
    undo
    exit 4
  }
  finish || {
    undo
    exit 1
  }
  [ -z "$old" ] || rm -rf "$old"
  remove_others "$build"
}

# takes back what was made, and puts back what was there
undo() {
  rm -rf "$build"
  [ -z "$old" ] || mv -T "$old" "$build"
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
  # it may need what the lines of `activate` set, so env/install.sh has asked it
  read -r version <"$build/hvdctl.version" || return
  content=$(sha256sum <"$build/hvdctl.packages") || return
  size=$(du -sk "$build") || return
  size=${size%%[!0-9]*}
  {
    cat "$build/hvdctl.tool"
    printf 'hash %s\npython %s\ncontent %s\nsize %s\n' "$hash" "$version" "${content%% *}" "$((size * 1024))"
    printf 'time %s\nsource %s\n' "$(date +%s)" "$source"
  } >"$build/.hvdctl.env" || return
  rm -f "$build/hvdctl.tool" "$build/hvdctl.version"
  # Python does not read again what it has compiled, and systemd-tmpfiles would remove that from /var/tmp after 30 days, but for files
  # with this bit (XDG Base Directory Specification)
  find "$build" -type f -exec chmod +t {} + || return
  mv -f "$build/.hvdctl.env" "$build/hvdctl.env" || return
  put_in_place
}

# lets the name lead to it, and says what it is
put_in_place() {
  trap - HUP INT TERM
  { ln -sfn ".builds/${build##*/}" "$builds/.$name.link" && mv -fT "$builds/.$name.link" "$envs/$name"; } || return
  sed 's/^/hvdctl: made /' "$build/hvdctl.env"
  sed 's/^/hvdctl: package /' "$build/hvdctl.packages"
}

# the shell reads the whole block first: nothing that follows on standard input is a command
main; exit
