# Prints the files of a pool: first a line for each that is not read ("link NAME", "special NAME", "denied NAME", "large NAME", "odd", and
# "more" if there are more than so many) and for each that is ("file NAME"), then "files". If there are such, an archive of them
# follows, and "tar STATUS" with what tar has reported. Any member may have written anything there. Appended to pool/enter.sh.
# Variables: path, most (files), blocks (the most of 512 bytes that a file has).
if [ ! -r . ]; then
  echo "Permission denied: $path" >&2
  exit 1
fi
newline='
'
# it also fails if a file is removed while it looks at it
too_large() { find . ! -name . -prune -name '*.node' -type f -size "+$blocks"; }
large=$(too_large) || large=$(too_large)
large=$newline$large$newline
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
    echo "file ${file#./}"
    files=$files$file$newline
  fi
done
echo files
# with no option that only one tar has. Of a file that its owner withdraws or replaces just now tar reports an error and reads the others:
# the reader of the archive decides whether it is whole.
if [ -n "$files" ]; then
  IFS=$newline
  set -f
  status=0
  # shellcheck disable=SC2086 # one argument for each line
  { reported=$(tar -cf - $files 2>&1 >&3) || status=$?; } 3>&1
  printf 'tar %s\n%s\n' "$status" "$reported"
fi
