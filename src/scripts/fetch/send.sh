# Writes a tar stream of files to standard output. Argument: the directory; standard input: names that begin with `./`, each ended by
# NUL.
LC_ALL=C
export LC_ALL
cd "$1" && exec tar --create --file=- --no-recursion --hard-dereference --null --files-from=-
