# Gives parts of files, one behind the other. Arguments: the folder; standard input: "OFFSET BYTES NAME", each ended by NUL. Exactly
# so many bytes come of each, whatever has become of the file meanwhile; whether they are the right ones, a hash says.
cd "$1" || exit 1
# shellcheck disable=SC2016 # it is the inner shell's
xargs -0 -r sh -c 'for part; do
  offset=${part%% *} part=${part#* }
  bytes=${part%% *} name=${part#* }
  { tail -c "+$((offset + 1))" "./$name"; cat /dev/zero; } 2>/dev/null | head -c "$bytes"
done' sh
