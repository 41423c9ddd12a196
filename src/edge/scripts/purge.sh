# Removes what `keys push`, `train` and `verify` left on this node. Wants: ssh_dir, projects_dir, jobs_dir, cluster.
# Only what hvdctl wrote for this cluster goes: its own lines of authorized_keys and known_hosts, its key files, the
# projects that it shipped (a list of their files lies beside each) and the records of its runs. Another cluster may use
# the same folders. What cannot be removed is told, and everything else goes all the same.
failed=0
fail() {
  echo "$1" >&2
  failed=1
}
tag=" hvdctl:$cluster"
ours() { awk -v tag="$tag" 'substr($0, length($0) - length(tag) + 1) == tag { found = 1 } END { exit !found }' "$1" 2>/dev/null; }
drop_lines() { # FILE
  [ -f "$1" ] || return 0
  # a full disk must not pass for a file without other lines: awk's own word decides, not what it left
  if ! awk -v tag="$tag" 'substr($0, length($0) - length(tag) + 1) != tag' "$1" >"$1.hvdctl"; then
    rm -f "$1.hvdctl"
    fail "$1: could not take hvdctl's lines out"
  elif [ -s "$1.hvdctl" ]; then
    { chmod --reference="$1" "$1.hvdctl" && mv -f "$1.hvdctl" "$1"; } || fail "$1: could not be replaced"
  else
    rm -f "$1" "$1.hvdctl"
  fi
}
if [ -d "$ssh_dir" ]; then
  drop_lines "$ssh_dir/authorized_keys"
  drop_lines "$ssh_dir/known_hosts"
  for name in id_rsa id_ed25519 ssh_host_ed25519_key; do
    # only a pair that carries our tag in its public half
    if ours "$ssh_dir/$name.pub"; then rm -f "$ssh_dir/$name" "$ssh_dir/$name.pub" || failed=1; fi
  done
  rmdir "$ssh_dir" 2>/dev/null || :
fi
for list in "$projects_dir"/.*"@$cluster.shipped"; do
  [ -f "$list" ] || continue
  name=${list##*/.}
  # the list goes last: with it a second try knows what is left
  if rm -rf "${projects_dir:?}/${name%"@$cluster.shipped"}"; then rm -f "$list" "$list.new"; else failed=1; fi
done
for record in "$jobs_dir"/*/job.json; do
  if grep -qF "\"cluster\":\"$cluster\"" "$record" 2>/dev/null; then rm -rf "${record%/job.json}" || failed=1; fi
done
for dir in "$projects_dir" "$jobs_dir" "${ssh_dir%/*}"; do rmdir "$dir" 2>/dev/null || :; done
exit "$failed"
