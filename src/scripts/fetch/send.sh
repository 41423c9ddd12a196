# Follows fetch/below.sh. Writes a tar stream of files to standard output. Argument: the directory; standard input: names that begin with
# `./`, each ended by NUL.
send_below "$1"
