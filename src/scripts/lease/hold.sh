# Appended to lease/common.sh. Takes this node's lease and holds it until standard input ends; each line there renews it. Variables:
# id, holder, pid, purpose. Prints "held", or "busy" and the other lease. Exits when its lease was replaced or released, or could not be
# renewed until it expired, and prints which.
# `alone` calls the functions
# shellcheck disable=SC2317

main() {
  [ -z "$private" ] || own_private || exit
  directory writable || {
    echo "neither $run/hvdctl nor $run/user/${user:-0}/hvdctl can be written" >&2
    exit 1
  }
  check_place
  # releases the lease however the script ends
  trap 'alone 10 give_back; exit' HUP INT TERM
  # a lease whose "held" could not be delivered (SIGPIPE) is released, too
  alone 10 take || {
    code=$?
    alone 10 give_back
    exit "$code"
  }
  while read -r _; do
    # whoever has the lock meanwhile, the lease is still this one's
    alone "$expires" renew || {
      [ $? != 4 ] || echo blocked
      break
    }
  done
  alone 10 give_back
}

take() {
  if fresh; then
    echo busy
    show
    exit 3
  fi
  # a name of its own: earlier versions lock the directory instead, and may write at the same moment. Then the later one has the lease, and
  # the other one finds that at its next renewal. Others can read only the file that is complete
  umask 077
  printf 'id %s\nholder %s\npid %s\npurpose %s\nsince %s\n' "$id" "$holder" "$pid" "$purpose" "$(date +%s)" >"$file.$$" &&
    mv -f "$file.$$" "$file" && chmod 644 "$file" && echo held
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

give_back() {
  ! is_of "$id" || rm -f "$file"
  # after `down --purge` nothing is left of a directory that hvdctl has created for itself (node/purge.sh)
  if [ -n "$private" ] && [ -e "$private/.created" ] && [ -e "$place/purged" ]; then
    rm -f "$place/purged"
    left=$(find "$private" -mindepth 1 ! -path "$run" ! -path "$place" ! -path "$place/.lock" ! -path "$private/.created") || return
    [ -n "$left" ] || rm -rf -- "$private"
  fi
}

# the shell reads the whole block first, so that lines for renewals are not read as commands
main; exit
