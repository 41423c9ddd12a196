# Behind lease.sh. Releases a lease, whoever holds it. Wants further: id (of the lease that is meant; another one stays). Says
# "released" where it was there.
release() {
  if is_of "$id"; then
    rm -f "$file" && echo released
  fi
}
if directory has_lease; then alone release; fi
