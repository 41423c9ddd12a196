# Enters the directory of a pool, or says why it cannot: the shell's own cd gives no reason. Variables: path.
set -eu
LC_ALL=C
export LC_ALL
reason=$(ls -d "$path/." 2>&1) || {
  case $reason in
  *'No such file or directory'*)
    echo "there is no directory $path" >&2
    exit 66 # pool/directory.rs
    ;;
  *) echo "${reason##*: }: $path" >&2 ;;
  esac
  exit 1
}
cd "$path"
