# Removes what `keys push`, `train` and `verify` left on this node. Wants: ssh_dir, projects_dir, jobs_dir, cluster.
# Only what hvdctl wrote for this cluster goes: its own lines of authorized_keys and known_hosts, its key files, the
# projects that it shipped (a list of their files lies beside each) and the records of its runs. Another cluster may use
# the same folders.
tag=" hvdctl:$cluster"
ours() { awk -v tag="$tag" 'substr($0, length($0) - length(tag) + 1) == tag { found = 1 } END { exit !found }' "$1" 2>/dev/null; }
drop_lines() { # FILE
  [ -f "$1" ] || return 0
  awk -v tag="$tag" 'substr($0, length($0) - length(tag) + 1) != tag' "$1" >"$1.hvdctl"
  if [ -s "$1.hvdctl" ]; then
    chmod --reference="$1" "$1.hvdctl" && mv -f "$1.hvdctl" "$1"
  else
    rm -f "$1" "$1.hvdctl"
  fi
}
if [ -d "$ssh_dir" ]; then
  drop_lines "$ssh_dir/authorized_keys"
  drop_lines "$ssh_dir/known_hosts"
  for name in id_rsa id_ed25519 ssh_host_ed25519_key; do
    # only a pair that carries our tag in its public half
    if ours "$ssh_dir/$name.pub"; then rm -f "$ssh_dir/$name" "$ssh_dir/$name.pub"; fi
  done
  rmdir "$ssh_dir" 2>/dev/null || :
fi
for list in "$projects_dir"/.*"@$cluster.shipped"; do
  [ -f "$list" ] || continue
  name=${list##*/.}
  rm -rf "${projects_dir:?}/${name%"@$cluster.shipped"}" "$list"
done
for record in "$jobs_dir"/*/job.json; do
  if grep -qF "\"cluster\":\"$cluster\"" "$record" 2>/dev/null; then rm -rf "${record%/job.json}"; fi
done
for dir in "$projects_dir" "$jobs_dir" "${ssh_dir%/*}"; do rmdir "$dir" 2>/dev/null || :; done
