# Appended to env/common.sh. Receives wheels as a tar stream on standard input: SHA-256/FILE.whl, into env/.wheels/NAME.
# One that differs from its hash gets no place. Variables: name.
umask 077
make_place
{ mkdir -p "$envs/.wheels/$name" && cd "$envs/.wheels/$name"; } || exit
# what interrupted uploads have left; another one may go on
find . -maxdepth 1 -name '.incoming.*' -mmin +60 -exec rm -rf {} +
incoming=$(mktemp -d .incoming.XXXXXX) || exit
trap 'rm -rf "$incoming"' EXIT
tar -xof - -C "$incoming" || exit
for wheel in "$incoming"/*/*.whl; do
  hash=${wheel#*/}
  hash=${hash%/*}
  actual=$(sha256sum <"$wheel") || exit
  [ "${actual%% *}" = "$hash" ] || fail "${wheel##*/} arrived with different contents"
  { mkdir -p "$hash" && mv -f "$wheel" "$hash/"; } || exit
done
