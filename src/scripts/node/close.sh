# Prepended to scripts that create directories. Only root and the login that hvdctl uses may enter what is closed here.

# tests whether nobody but root and the login is in a group. A directory service lists neither its users nor whose first group it is, so
# only groups with the name of the login, and those that a distribution has by itself (below 100), can be private
is_private() { # GID
  # of a script that runs as the login itself, it is the login's
  login=${HVDCTL_LOGIN:-$(id -u):$(id -g)}
  login=${login%%:*}
  group=$(timeout 5 getent group "$1") && user=$(timeout 5 getent passwd "$login") || return
  [ "${group%%:*}" = "${user%%:*}" ] || [ "$1" -lt 100 ] || return
  users=$(timeout 5 getent passwd && printf '%s\n' "$user") || return
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
  # before others can enter: with an ACL, the bits of the group are those of users that the ACL names
  chmod 700 -- "$1" || return
  case $(ls -ld -- "$1") in ??????????+*) return 0 ;; esac
  # a file system that takes root for nobody (NFS) lets it give nothing to a group
  if [ -n "$closed_for" ] && chgrp -- "$closed_for" "$1" 2>/dev/null; then chmod 750 -- "$1"; fi
}
