# Prints the files of a pool: first a line for each that is not read ("link NAME", "special NAME", "denied NAME", "large NAME", "odd", and
# "more" if there are more than so many), then "files", and an archive of the others. Any member may have written anything there.
# Variables: path, most (files), blocks (the most of 512 bytes that a file has).
set -eu
LC_ALL=C
export LC_ALL
if [ ! -d "$path" ]; then
  echo "there is no directory $path" >&2
  exit 1
fi
cd "$path"
newline='
'
# also fails where the directory cannot be read, which the pattern below would not show
large=$newline$(find . ! -name . -prune -name '*.node' -type f -size "+$blocks")$newline
number=0
files=
for file in ./*.node; do
  # without any file the pattern is left as it is
  if [ ! -e "$file" ] && [ ! -h "$file" ]; then continue; fi
  number=$((number + 1))
  if [ "$number" -gt "$most" ]; then
    echo more
    break
  fi
  case $file in
  *[!A-Za-z0-9@._+/-]*)
    echo odd
    continue
    ;;
  esac
  case $large in
  *"$newline$file$newline"*)
    echo "large ${file#./}"
    continue
    ;;
  esac
  if [ -h "$file" ]; then
    echo "link ${file#./}"
  elif [ ! -f "$file" ]; then
    echo "special ${file#./}"
  elif [ ! -r "$file" ]; then
    echo "denied ${file#./}"
  else
    files=$files$file$newline
  fi
done
echo files
# a file that its owner withdraws just now takes no other one with it; of what was cut off the reader learns by itself
if [ -n "$files" ]; then printf '%s' "$files" | tar -cf - --ignore-failed-read -T - || [ "$?" -eq 1 ]; fi
