# Appended to process/common.sh. Checks whether ranks can run here: whether the lines of the inventory set up an environment, and what that
# has. Leaves nothing. Variables: activate (lines of bash), find_python (process/find_python.sh).
find_manager
# before the node is set up, anybody may have created the directory
place=$run_dir
for part in "${run_dir%/*}" "$run_dir"; do
  [ "$(stat -c %u -- "$part" 2>/dev/null)" = "$(id -u)" ] || place=
done
directory=$(mktemp -d "${place:-${TMPDIR:-/tmp}}/.new.XXXXXX") || exit
trap 'rm -rf "$directory"' EXIT
if [ -n "$place" ]; then
  printf '#!/bin/sh\n' >"$directory/program" && chmod 700 "$directory/program" || exit
  "$directory/program" || {
    echo "programs cannot be executed in $run_dir, for example because its file system is mounted noexec; set cluster.state_dir to another directory" >&2
    exit 1
  }
fi
printf '%s\n' "$activate" >"$directory/activate" && cat >"$directory/end" <<'END' || exit
command -v python3 >/dev/null || {
  echo "python3: not found, with this PATH: $PATH" >&2
  exit 1
}
python3 -c 'import sys; sys.exit(sys.version_info < (3, 7) and "Python 3.7 or later is needed, and python3 is " + sys.version.split()[0])' || exit
# as sshd does with UsePAM=no (sshd_config(5))
if [ "$(id -u)" = 0 ] && grep -q "^$(id -un):!" /etc/shadow 2>/dev/null; then
  echo "the account $(id -un) is locked, and sshd refuses logins to it: usermod -p '*' $(id -un)" >&2
  exit 1
fi
for sshd in "$(command -v sshd)" /usr/sbin/sshd /usr/local/sbin/sshd /sbin/sshd /run/current-system/sw/bin/sshd; do
  [ ! -x "$sshd" ] || exit 0
done
echo "sshd: not found; install OpenSSH's server on the node" >&2
exit 1
END
# shellcheck disable=SC2016 # expanded where it runs
printf '%s\n' ': >"$HVDCTL_PLACE/begun"' "$find_python" '. "$HVDCTL_PLACE/end"' >"$directory/begin" || exit
shell=bash
command -v bash >/dev/null || shell='sh'
HVDCTL_PLACE=$directory "$shell" -l "$directory/activate" </dev/null >/dev/null || exit
[ -e "$directory/begun" ] || {
  echo "the user's start-up files exit the shell, or replace it with another one (\`exec\` in ~/.bash_profile or ~/.profile)" >&2
  exit 1
}
