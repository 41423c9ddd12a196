# Behind lease.sh. Takes this node's lease and holds it until standard input ends; each line there renews it. Wants further:
# id, holder, pid, purpose. Says "held", or "busy" and the lease that is in
# the way. Ends by itself when the lease is no longer its own, and says so.
# `alone` calls the functions
# shellcheck disable=SC2317

main() {
  directory writable || {
    echo "neither $run/hvdctl nor $run/user/${user:-0}/hvdctl can be written" >&2
    exit 1
  }
  # whatever ends this, the lease is given back
  trap 'alone give_back; exit' HUP INT TERM
  # one that nobody was there to hear of (SIGPIPE ends the part that said so) is given back, too
  alone take || {
    code=$?
    alone give_back
    exit "$code"
  }
  while read -r _; do alone renew || break; done
  alone give_back
}

take() {
  if fresh; then
    echo busy
    show
    exit 3
  fi
  umask 022
  printf 'id %s\nholder %s\npid %s\npurpose %s\nsince %s\n' "$id" "$holder" "$pid" "$purpose" "$(date +%s)" >"$file.new" &&
    mv -f "$file.new" "$file" && echo held
}

renew() {
  if is_of "$id"; then
    touch -c "$file"
  elif [ -f "$file" ]; then
    echo taken
    show
    exit 1
  else
    echo released
    exit 1
  fi
}

give_back() { ! is_of "$id" || rm -f "$file"; }

# all of this is read before anything is done, and nothing that comes later: no line that renews is a part of it
main; exit
