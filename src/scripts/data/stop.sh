# Follows data/exists.sh, upload/common.sh and data/lock.sh. Lets a push that is still under way here put nothing into place; one that
# does so already is waited for, however many files it has: it ends with all of them. Removes what its relay has left.
[ -d "$known" ] || exit 0
lock 3600
rm -rf "$known/push" "$known/relay" || exit
# a push that has left nothing else
[ -e "$known/stage" ] || [ -e "$known/shipped" ] || rm -rf "$known"
