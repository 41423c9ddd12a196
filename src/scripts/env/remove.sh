# Appended to node/marked.sh, env/common.sh and env/change.sh. Removes a virtualenv, unless a process has activated it.
# Prints "removed" if there was anything of it.
has_any() {
  for other in "$envs/$name" "$envs/.wheels/$name" "$builds/$name".??????; do
    { [ -e "$other" ] || [ -h "$other" ]; } && return
  done
  return 1
}
if is_foreign "$name"; then fail "$envs/$name was not created by hvdctl"; fi
has_any || exit 0
lock
for other in "$builds/$name".??????; do
  used=$(users "$other") || exit
  [ -z "$used" ] || fail "a process runs from it (pid $(printf '%s\n' "$used" | head -n 1))" 5
done
for other in "$builds/$name".??????; do remove_build "$other" || exit; done
rm -rf "$envs/${name:?}" "$envs/.wheels/$name" "$builds/.old.$name" || exit
# what pip and uv have downloaded is for the virtualenvs that are left
if rmdir "$builds" 2>/dev/null; then
  rm -rf "$envs/.cache" "$envs/.wheels" "$envs"/.lock.* && rmdir "$envs" 2>/dev/null
fi
echo removed
