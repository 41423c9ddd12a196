# Asks the supervisors of a job's ranks on this node where these are (programs/supervisor/stacks.py), and prints the answers, one a line:
# `stack JSON`; before them `machine NAME`, and `py-spy HASH` if hvdctl has sent that; after them `silent RANK` for each without an answer.
# Prints `old` if the supervisors are of an hvdctl that did not answer. Appended to job/directory.sh. Variables: jobs_dir, id (of the directory
# of this node's own files), request (JSON), number (of the request), limit (in tenths of a second).
set -u
umask 077
enter "$id" || exit
programs=.
case $id in */*) programs=../.. ;; esac
printf 'machine %s\n' "$(uname -m)"
regular "$programs/stacks.py" || { echo old && exit; }
if open_regular "$programs/py-spy"; then
  hash=$(sha256sum <&5)
  printf 'py-spy %s\n' "${hash%% *}"
fi
# the ranks that run: a start, and no exit since
waited=' '
if open_regular states; then
  while read -r _ rank kind _; do
    case $rank in '' | *[!0-9]*) continue ;; esac
    case $kind$waited in
    s*" $rank "*) ;;
    s*) waited="$waited$rank " ;;
    x*" $rank "*) waited="${waited%%" $rank "*} ${waited#*" $rank "}" ;;
    esac
  done <&5
fi
# one at a time, where the file system has locks
if command -v flock >/dev/null && exec 9<.; then flock -w 10 9 2>/dev/null || :; fi
printf '%s' "$request" | put stack.wanted || exit
# shellcheck disable=SC2086 # numbers
answered=' ' left=$limit count=$(set -- $waited && echo $#)
while [ "$count" -gt 0 ] && [ "$left" -gt 0 ]; do
  for file in stack.[0-9]*; do
    case ${file#stack.} in *[!0-9]*) continue ;; esac
    # an elastic job may have given a rank another number since its start
    if open_regular "$file" && answer=$(head -c 131072 <&5); then
      case $answer in *"\"number\": \"$number\""*) ;; *) continue ;; esac
      printf 'stack %s\n' "$answer"
      rm -f "$file"
      answered="$answered${file#stack.} " count=$((count - 1))
    fi
  done
  left=$((left - 1))
  [ "$count" -le 0 ] || sleep 0.1
done
# reap.py may have made a request of its own meanwhile
if open_regular stack.wanted && grep -qF -e "\"$number\"" <&5; then rm -f stack.wanted; fi
[ "$count" -gt 0 ] || exit 0
for rank in $waited; do
  case $answered in *" $rank "*) ;; *) echo "silent $rank" ;; esac
done
