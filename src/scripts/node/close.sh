# Prepended to scripts that create directories. Only root and the login that hvdctl uses may enter what is closed here.

# tests whether nobody but root and the login is in a group
is_private() { # GID
  login=${HVDCTL_LOGIN:-0:0}
  login=${login%%:*}
  group=$(getent group "$1") && users=$(getent passwd && getent passwd "$login") || return
  printf '%s\n' "$users" | members=${group##*:} awk -F: -v gid="$1" -v login="$login" '
    $3 == 0 || $3 == login { known[$1]; next }
    $4 == gid { others = 1 }
    END {
      count = split(ENVIRON["members"], members, ",")
      for (i = 1; i <= count; i++) if (!(members[i] in known)) others = 1
      exit others
    }'
}
# prints the login's group if nobody else is in it: not a shared one such as `users`. In a user namespace numbers mean other groups
private_group() {
  gid=${HVDCTL_LOGIN:-}
  gid=${gid##*:}
  case ${HVDCTL_LOGIN:-}:$gid in : | 0:* | *:0 | *[!0-9:]*) return 0 ;; esac
  read -r first mapped _ 2>/dev/null </proc/self/uid_map || return 0
  if [ "$first:$mapped" = 0:0 ] && is_private "$gid"; then echo "$gid"; fi
}
# closes a directory: root's with mode 750 and the login's own group, or 700
close_directory() { # DIRECTORY
  [ -n "${closed_for+set}" ] || closed_for=$(private_group)
  # a file system that takes root for nobody (NFS) lets it give nothing to a group
  if [ -n "$closed_for" ] && chgrp -- "$closed_for" "$1" 2>/dev/null; then
    chmod 750 -- "$1"
  else
    chmod 700 -- "$1"
  fi
}
