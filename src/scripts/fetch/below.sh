# Prepended to scripts that read files of a directory in which ranks may at any time put a link in the place of a directory. A link would
# lead root to files that are not the job's. So each directory is entered first, and the kernel is asked where it is: as many directories
# above it as its path has parts is the top. Then it is kept open, and its files are read as /proc/self/fd/N/NAME, whatever is put in its
# place meanwhile.
LC_ALL=C
export LC_ALL

# Reads names that begin with ./ from standard input, each ended by NUL, and runs a script with the paths of files of up to six directories
# as its arguments, at most 100: the shell has ten descriptors. With FILES, only regular files are among them: a pipe would wait for ever,
# and a link leads elsewhere. Names that are sorted by directory need the fewest runs. `opened` has an
# expression of sed for each directory, which puts its name (./PATH) in the place of /proc/self/fd/N. Fails if a run fails, or a directory is
# gone or elsewhere.
below() { # TOP SCRIPT [FILES]
  # shellcheck disable=SC2016 # it is the inner shell's
  xargs -0 -r sh -c 'top=$1 files=$3 directory= fd=3 opened= names= failed=0
    eval "use() { $2
    }"
    case $top in /*) ;; *) top=$PWD/$top ;; esac
    enter() {
      cd -P -- "$top" || exit
      [ -d "$directory" ] && cd -P -- "$directory" || return
      up=. rest=$directory
      while [ "$rest" != "${rest%/*}" ]; do up=$up/.. rest=${rest%/*}; done
      [ "$up" -ef "$top" ] || { echo "$directory: it points outside the project" >&2 && return 1; }
      fd=$((fd + 1)) at=$directory
      eval "command exec $fd<." || return
      case $at in *[\\\&\|]* | *"
"*) at=$(printf %s "$at" | sed -z "s/[\\\\&|]/\\\\&/g;s/\n/\\\\n/g") ;; esac
      opened="${opened}s|/proc/self/fd/$fd/|$at/|;"
    }
    flush() {
      [ $# = 0 ] || use "$@" || failed=1
    }
    shift 3
    for name; do
      [ -n "$names" ] || { names=1 && set --; }
      if [ $# -ge 100 ]; then
        flush "$@"
        set --
      fi
      if [ "${name%/*}" != "$directory" ]; then
        if [ "$fd" = 9 ]; then
          flush "$@"
          set --
          fd=3 opened=
        fi
        directory=${name%/*} entered=1
        enter || entered= failed=1
      fi
      [ -n "$entered" ] || continue
      file=/proc/self/fd/$fd/${name##*/}
      if [ -z "$files" ] || { [ -f "$file" ] && [ ! -h "$file" ]; }; then set -- "$@" "$file"; fi
    done
    flush "$@"
    exit "$failed"' sh "$1" "$2" "${3:-}"
}
# writes a tar stream of files to standard output, in several archives one after the other; names as for `below`. Exits with 2 if files are
# missing
send_below() { # TOP
  # shellcheck disable=SC2016 # it is the shell's of `below`
  below "$1" 'tar --create --file=- --blocking-factor=1 --no-recursion --no-unquote --hard-dereference --absolute-names \
    --transform="flags=rSH;$opened" -- "$@"'
  case $? in 0) ;; 123) exit 2 ;; *) exit 1 ;; esac
}
