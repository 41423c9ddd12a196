# Hashes files. Argument: the directory; standard input: names, each ended by NUL. Prints "HASH NAME", ended by NUL, for files that
# can be read; standard error names the others.
LC_ALL=C
export LC_ALL
cd "$1" || exit 1
sed -z 's|^|./|' | xargs -0 -r b2sum -l 256 -bz | sed -z 's|^\([0-9a-f]*\) \*\./|\1 |'
# fails if the directory was removed meanwhile
[ -d "$1" ]
