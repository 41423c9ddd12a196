# Hashes files. Arguments: the folder; standard input: names, each ended by NUL. Prints "HASH NAME", ended by NUL, of those that
# can be read.
cd "$1" || exit 1
sed -z 's|^|./|' | xargs -0 -r sha256sum -bz 2>/dev/null | sed -z 's|^\([0-9a-f]*\) \*\./|\1 |'
