# Follows upload/common.sh. Standard input: what a push needs to know besides what it sends, in records ended by NUL: `gone NAME` of what
# it removes, `kept RECORD` of each file of the manifest that has arrived in an interrupted push.
mkdir -p "$compared" && cat >"$compared/list" || exit
sed -zn 's/^gone //p' "$compared/list" >"$compared/gone" && sed -zn 's/^kept //p' "$compared/list" >"$compared/kept" || exit
rm -f "$compared/list"
