# Prints how the login can use root on this node, and which tools the node lacks, as "KEY VALUE" lines for transport/access.rs. Appended to
# access/login.sh. Changes nothing and never asks for a password.
LC_ALL=C
export LC_ALL

# the tools of hvdctl's scripts, by Debian package (text/packages.rs has those of other distributions): without them, some scripts would
# report nothing instead of an error
packages='
coreutils b2sum base64 cat chgrp chmod chown comm cp cut date dd df du head id ln ls mkdir mkfifo mktemp mv paste readlink rm rmdir
coreutils sha256sum sleep sort stat sync tail timeout touch tr uname uniq
diffutils cmp
findutils find xargs
grep grep
iproute2 ip ss
libc-bin getent
mawk awk
sed sed
tar tar
util-linux flock setsid
'
each() { # COMMAND: calls it with each tool and its package
  while read -r package tools; do
    for tool in $tools; do "$1" "$tool" "$package"; done
  done <<PACKAGES
$packages
PACKAGES
}
find_missing() { command -v "$1" >/dev/null 2>&1 || say missing "$1" "$2"; }
# passes on a record that ends with NUL, with options that only GNU's tools have (coreutils 8.30 or later); in a subshell
pass() { # TOOL
  case $1 in
  b2sum) b2sum -l 256 -bz >/dev/null && printf '/\0' ;;
  comm) exec comm -z -13 /dev/null - ;;
  cut) exec cut -z -c1- ;;
  grep) exec grep -zxF / ;;
  sed) exec sed -z s/x/y/ ;;
  sort) exec sort -z ;;
  stat) exec stat --printf='%n\0' / ;;
  xargs) exec xargs -0 -r printf '%s\0' ;;
  *) exec cat ;;
  esac 2>/dev/null
}
find_unfit() {
  if ! command -v "$1" >/dev/null 2>&1 || [ "$(printf '/\0' | pass "$1" | tr '\0' .)" = /. ]; then return; fi
  case $("$1" --version 2>/dev/null) in
  # uutils before 0.1 do not say so
  *uutils* | *' 0.0.'*) say unfit "$1" uutils ;;
  *) say unfit "$1" "$2" ;;
  esac
}
each find_missing
# all of them at once; one by one only if one fails
passed=$({
  printf '/\0' | pass grep | pass sed | pass sort | pass cut | pass comm | pass xargs
  (pass b2sum </dev/null)
  (pass stat)
} | tr '\0' .)
[ "$passed" = /././. ] || each find_unfit

say user "$(id -un)"
say shell "${SHELL:-}"
if [ "$me" = 0 ]; then
  say sudo root
elif ! command -v sudo >/dev/null 2>&1; then
  say sudo no sudo is not installed
# with -k, sudo forgets for this call that the password was typed not long ago
elif said=$(sudo -k -n true 2>&1); then
  say sudo yes
else
  said=$(reason "$said")
  # sudo also asks users whom it will refuse, so only a try shows whether a password helps
  case $said in
  # the second message is that of sudo-rs
  *'password is required'* | *'interactive authentication is required'*)
    if sudo -n true >/dev/null 2>&1; then say sudo yes remembered; else say sudo asks "$said"; fi
    ;;
  *) say sudo no "$said" ;;
  esac
fi
