# Appended to process/common.sh. Checks whether ranks can run here: whether the lines of the inventory set up an environment, and what that
# has. Leaves nothing. Variables: activate (lines of bash).
mkdir -p "$run_dir" || exit
directory=$(mktemp -d "$run_dir/.new.XXXXXX") || exit
trap 'rm -rf "$directory"' EXIT
printf '#!/bin/sh\n' >"$directory/program" && chmod 700 "$directory/program" || exit
"$directory/program" || {
  echo "no program can be executed in $run_dir, as where a file system is mounted noexec; set cluster.state_dir to another directory" >&2
  exit 1
}
printf '%s\n' "$activate" >"$directory/activate" && cat >"$directory/begin" <<'BEGIN' || exit
command -v python3 >/dev/null || {
  echo "python3: not found, with this PATH: $PATH" >&2
  exit 1
}
python3 -c 'import sys; sys.exit(sys.version_info < (3, 7) and "Python 3.7 or later is needed, and python3 is " + sys.version.split()[0])' || exit
for sshd in "$(command -v sshd)" /usr/sbin/sshd /usr/local/sbin/sshd /sbin/sshd /run/current-system/sw/bin/sshd; do
  [ ! -x "$sshd" ] || exit 0
done
echo "sshd: not found; install OpenSSH's server on the node" >&2
exit 1
BEGIN
shell=bash
command -v bash >/dev/null || shell=sh
"$shell" -l "$directory/activate" "$directory" </dev/null >/dev/null
