# Installs the operator's key for the login. Wants: key (one line). sshd requires that only the login may write the directory
# and the file.
set -eu
umask 077
cd
mkdir -p .ssh
chmod go-w .ssh
file=.ssh/authorized_keys
# the comment behind a key does not make it another one
set -f
# shellcheck disable=SC2086 # type and key
set -- $key
if [ -f "$file" ] && grep -v "^[[:space:]]*#" "$file" | grep -qF -- "$1 $2"; then exit 0; fi
# a last line without its newline must not swallow ours
if [ -s "$file" ] && [ -n "$(tail -c 1 "$file")" ]; then echo >>"$file"; fi
printf '%s\n' "$key" >>"$file"
chmod 600 "$file"
# where SELinux guards it, sshd may read only what is labelled for it; if that fails, the next login says so
if command -v restorecon >/dev/null 2>&1; then restorecon -F .ssh "$file" 2>/dev/null || :; fi
