# Follows upload/common.sh, data/lock.sh and upload/prepare.sh. Removes the staged files that are not needed.
[ -d "$known/stage/t" ] || exit 0
lock
cd "$known/stage" || exit
cut -z -d' ' -f4- ../compared/kept | sort -z >keep || exit
(cd t && find . ! -type d -printf '%P\0') | sort -z >has || exit
comm -z -23 has keep | (cd t && xargs -0 -r rm -f --) || exit
find t -mindepth 1 -type d -empty -delete || exit
rm -f has keep
