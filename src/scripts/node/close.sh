# Prepended to scripts that create directories. Only root and the login that hvdctl uses may enter what is closed here.

# prints the login's group if nobody else is in it: not a shared one such as `users`. In a user namespace numbers mean other groups
private_group() {
  uid=${HVDCTL_LOGIN%%:*} gid=${HVDCTL_LOGIN##*:}
  case $uid:$gid in : | 0:* | *:0 | *[!0-9:]*) return 0 ;; esac
  read -r first mapped _ 2>/dev/null </proc/self/uid_map || return 0
  [ "$first:$mapped" = 0:0 ] || return 0
  user=$(getent passwd "$uid" | cut -d: -f1)
  others=$(getent passwd | awk -F: -v uid="$uid" -v gid="$gid" '$3 != uid && $4 == gid' | head -n 1)
  members=$(getent group "$gid" | cut -d: -f4)
  if [ -n "$user" ] && [ -z "$others" ] && { [ -z "$members" ] || [ "$members" = "$user" ]; }; then echo "$gid"; fi
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
