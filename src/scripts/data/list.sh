# Follows data/exists.sh and upload/common.sh, whose first argument is data_dir here. Prints a record for each of the cluster's data:
# "NAME STATE HASH FILES BYTES SECONDS ORIGIN", with the seconds since the push and `-` for what is not known. Changes nothing.
for known in .*"@$cluster"; do
  [ -d "$known" ] || continue
  name=${known#.}
  name=${name%"@$cluster"}
  state=incomplete tree=- sizes='0 0' age=-
  if [ -f "$known/tree" ]; then
    state=complete tree=$(cat "$known/tree") || exit
    if [ ! -d "$name" ]; then
      state=removed
    # an earlier hvdctl has sorted the states
    elif ! is_intact && ! stats "$known/shipped" "$name" | sort -z | cmp -s - "$known/stat"; then
      state=changed
    fi
    # files and their bytes by their states
    sizes=$(tr '\n\0' ' \n' <"$known/stat" | awk '/^8/ { files++; bytes += $3 } END { printf "%d %.0f", files, bytes }') || exit
    age=$(($(date +%s) - $(stat -c %Y "$known/tree"))) || exit
  fi
  record "$name $state $tree $sizes $age $(head -n 1 "$known/origin" 2>/dev/null)"
done
