# Appended to node/marked.sh and process/common.sh. Ends a process and all that it has started; there may be none. Variables: which (its
# name or id), remove (whether it is also removed).
find_process "$which" || exit 0
kill_all "$id"
[ -n "$remove" ] || exit 0
old=$run_dir/.old.$$
mv -T "$directory" "$old" && rm -rf "$old"
