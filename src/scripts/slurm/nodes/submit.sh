# Submits a job and writes its number. Runs in the container of the master. Arguments: the file for the number, and the command.
file=$1
shift
number=$("$@") || exit
case ${number%%;*} in
'' | *[!0-9]*)
  printf 'sbatch has printed no number of a job: %s\n' "$number" | head -n 3 >&2
  exit 1
  ;;
esac
umask 077
mkdir -p "${file%/*}" && printf '{"number": "%s"}' "${number%%;*}" >"$file.new" && mv -fT -- "$file.new" "$file"
