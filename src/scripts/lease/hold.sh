# Appended to lease/common.sh. Takes this node's lease and holds it until standard input ends; each line there renews it. Variables:
# id, holder, pid, purpose. Prints "held", or "busy" and the other lease. Exits when its lease was replaced or released, and prints
# which.
# `alone` calls the functions
# shellcheck disable=SC2317

main() {
  directory writable || {
    echo "neither $run/hvdctl nor $run/user/${user:-0}/hvdctl can be written" >&2
    exit 1
  }
  # releases the lease however the script ends
  trap 'alone give_back; exit' HUP INT TERM
  # a lease whose "held" could not be delivered (SIGPIPE) is released, too
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

# the shell reads the whole block first, so that lines for renewals are not read as commands
main; exit
