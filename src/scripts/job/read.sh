# Prints a file of a job from a byte offset, of its log only what is not output of ranks if `quiet` is not empty. Appended to
# job/directory.sh. Variables: jobs_dir, id, file, offset, quiet.
{ enter "$id" && open_regular "$file"; } 2>/dev/null || exit 0
[ -n "$quiet" ] || exec tail -c "+$((offset + 1))" <&5
# frames of output have the kinds o and e (frames.py)
tail -c "+$((offset + 1))" <&5 | LC_ALL=C grep -av '^[0-9.]* [0-9]* [oe] ' || [ $? = 1 ]
# standard input stays open
exit
