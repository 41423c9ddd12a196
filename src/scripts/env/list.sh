# Appended to env/common.sh and env/activate.sh. Prints the virtualenvs of a node for environment/listing.rs: "env NAME STATE", and behind
# it the lines of its `hvdctl.env` and "now SECONDS". Changes nothing.
cd "$envs" 2>/dev/null || exit 0
names() {
  for link in *; do
    case $(readlink "$link" 2>/dev/null) in .builds/*) printf '%s\n' "$link" ;; esac
  done
  for directory in .builds/*.??????; do
    [ -d "$directory" ] || continue
    directory=${directory#.builds/}
    printf '%s\n' "${directory%.*}"
  done
}
# tests whether a command holds the lock of the virtualenv; on a file system without locks none does
is_locked() { # NAME
  [ -f ".lock.$1" ] || return
  code=0
  (flock -n 9 2>/dev/null) 9<>".lock.$1" || code=$?
  [ "$code" = 1 ]
}
names | sort -u | while read -r name; do
  find_build "$name"
  if [ -n "$build" ]; then
    state=broken
    # a Python that was updated within its version is the same; the next version finds no packages
    case $(build_version) in "$(value python | cut -d. -f1-2)".*) state=complete ;; esac
  elif is_locked "$name"; then
    state=creating
  else
    state=incomplete
  fi
  printf 'env %s %s\n' "$name" "$state"
  [ -z "$build" ] || cat "$build/hvdctl.env"
  printf 'now %s\n' "$(date +%s)"
done
