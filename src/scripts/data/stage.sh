# Follows upload/common.sh and data/lock.sh. Standard input: the names (NUL) of the staged files that are still
# needed. Removes the others.
[ -d "$known/stage/t" ] || exit 0
lock
cd "$known/stage" || exit
sort -z >keep || exit
(cd t && find . ! -type d -printf '%P\0') | sort -z >has || exit
comm -z -23 has keep | (cd t && xargs -0 -r rm -f --) || exit
find t -mindepth 1 -type d -empty -delete || exit
rm -f has keep
