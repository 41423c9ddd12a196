# Installs the operator's key for the login. Variables: key (one line). sshd requires that only the login may write the directory
# and the file.
set -eu
umask 077
cd
mkdir -p .ssh
chmod go-w .ssh
file=.ssh/authorized_keys
# the comment is not part of the key
set -f
# shellcheck disable=SC2086 # type and key
set -- $key
if [ -f "$file" ] && grep -v "^[[:space:]]*#" "$file" | grep -qF -- "$1 $2"; then exit 0; fi
# ours must not be appended to a last line without a newline
if [ -s "$file" ] && [ -n "$(tail -c 1 "$file")" ]; then echo >>"$file"; fi
printf '%s\n' "$key" >>"$file"
chmod 600 "$file"
# with SELinux, sshd may read only files with the right label; if that fails, the next login reports it
if command -v restorecon >/dev/null 2>&1; then restorecon -F .ssh "$file" 2>/dev/null || :; fi
