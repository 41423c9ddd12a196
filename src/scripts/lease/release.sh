# Appended to lease/common.sh. Releases the lease `id`, regardless of its holder; another lease is kept. Prints "released" if it existed.
# Variables: id.
release() {
  if is_of "$id"; then
    rm -f "$file" && echo released
  fi
}
if directory has_lease; then
  check_place
  alone 10 release
fi
