# Removes what `keys push`, `train` and `verify` left on this node. Variables: ssh_dir, projects_dir, jobs_dir, cluster.
# It removes only what hvdctl wrote for this cluster, because another cluster may use the same directories: hvdctl's lines of
# authorized_keys and known_hosts, its key files, the projects that it uploaded, and the records of its jobs. An error does not keep it
# from removing the rest.
failed=0
fail() {
  echo "$1" >&2
  failed=1
}
tag="hvdctl:$cluster"
# a key pair is ours if its public half ends with our tag
ours() { awk -v tag="$tag" '$NF == tag { found = 1 } END { exit !found }' "$1" 2>/dev/null; }
# a line is ours if our tag comes right after a key, not if a comment mentions it
line='function ours(text) {
  sub(/\r$/, "", text)
  n = split(text, word)
  return n > 2 && word[1] !~ /^[#@]/ && word[n] == tag && word[n - 2] ~ /^(ssh|ecdsa|sk)-/
}'
drop_lines() { # FILE
  [ -f "$1" ] || return 0
  # awk's exit code, not the size of its output: the disk may be full
  if ! awk -v tag="$tag" "$line"' !ours($0)' "$1" >"$1.hvdctl"; then
    rm -f "$1.hvdctl"
    fail "$1: cannot remove hvdctl's lines"
  elif [ -s "$1.hvdctl" ]; then
    { chmod --reference="$1" "$1.hvdctl" && mv -f "$1.hvdctl" "$1"; } || fail "$1: cannot replace it"
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
    # what a rotation staged and did not finish; it removes the public half in place before it moves the private one
    if ours "$ssh_dir/$name.next.pub"; then
      [ -f "$ssh_dir/$name.pub" ] || rm -f "$ssh_dir/$name" || failed=1
      rm -f "$ssh_dir/$name.next" "$ssh_dir/$name.next.pub" || failed=1
    fi
  done
  # of a rotation that was interrupted before it had written the public half
  for name in id_rsa id_ed25519; do [ -f "$ssh_dir/$name.next.pub" ] || rm -f "$ssh_dir/$name.next" || failed=1; done
  rmdir "$ssh_dir" 2>/dev/null || :
fi
for known in "$projects_dir"/.*"@$cluster"; do
  [ -d "$known" ] || continue
  name=${known##*/.}
  name=$projects_dir/${name%"@$cluster"}
  # the separate directories of jobs
  for list in "$known"/shipped+*; do
    if rm -rf "${name:?}+${list##*+}"; then rm -f "$list"; else failed=1; fi
  done
  # last, so that a second attempt knows what is left
  if rm -rf "${name:?}"; then rm -rf "$known" || failed=1; else failed=1; fi
done
for record in "$jobs_dir"/*/job.json; do
  if grep -qF "\"cluster\":\"$cluster\"" "$record" 2>/dev/null; then rm -rf "${record%/job.json}" || failed=1; fi
done
rm -f "$jobs_dir/.drained@$cluster" || failed=1
for dir in "$projects_dir" "$jobs_dir" "${ssh_dir%/*}"; do rmdir "$dir" 2>/dev/null || :; done
exit "$failed"
