# Removes what `keys push`, `train` and `verify` left on this node. Wants: ssh_dir, projects_dir, jobs_dir, tag.
# Only files that hvdctl wrote go: its own lines of authorized_keys and known_hosts, its key files, the projects that
# it shipped (each has a list of its files beside it) and the folders of its runs.
drop_lines() { # FILE
  [ -f "$1" ] || return 0
  grep -v " $tag\$" "$1" >"$1.hvdctl" || :
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
    if grep -q " $tag\$" "$ssh_dir/$name.pub" 2>/dev/null; then rm -f "$ssh_dir/$name" "$ssh_dir/$name.pub"; fi
  done
  rmdir "$ssh_dir" 2>/dev/null || :
fi
for list in "$projects_dir"/.*.shipped; do
  [ -f "$list" ] || continue
  name=${list##*/.}
  rm -rf "${projects_dir:?}/${name%.shipped}" "$list"
done
for record in "$jobs_dir"/*/job.json; do
  [ -f "$record" ] || continue
  rm -rf "${record%/job.json}"
done
for dir in "$projects_dir" "$jobs_dir" "${ssh_dir%/*}"; do rmdir "$dir" 2>/dev/null || :; done
