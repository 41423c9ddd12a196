# The beginning of process/begin.sh, and of what process/check.sh runs in its place. A shell passes over a program that it cannot run: with a
# virtualenv whose Python is not on this node, ranks would run the next one in PATH, without its packages.
(
  IFS=:
  set -f
  for place in $PATH; do
    python=${place:-.}/python3
    if [ -d "$python" ] || { [ ! -h "$python" ] && [ ! -e "$python" ]; }; then continue; fi
    [ ! -f "$python" ] || [ ! -x "$python" ] || exit 0
    why='cannot be executed'
    [ -e "$python" ] || why="leads to $(readlink -- "$python"), which is not on this node"
    echo "hvdctl: activate: $python, the first python3 in PATH, $why" >&2
    exit 78
  done
) || exit
