# Installs OpenSSH in an image, by its own package manager, unless it has it. Runs in a container as root. Changes nothing else.
PATH=$PATH:/usr/sbin:/sbin
has() { command -v "$1" >/dev/null 2>&1; }
if has sshd && has ssh && has ssh-keygen; then exit 0; fi
echo "the image lacks OpenSSH, which is installed"
# the keys that its installation makes would be the same on all machines
trap 'rm -f /etc/ssh/ssh_host_*' EXIT
if has apt-get; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update && apt-get install -y --no-install-recommends openssh-server openssh-client
elif has dnf; then dnf install -y openssh-server openssh-clients
elif has microdnf; then microdnf install -y openssh-server openssh-clients
elif has yum; then yum install -y openssh-server openssh-clients
elif has zypper; then zypper --non-interactive install openssh
elif has apk; then apk add --no-cache openssh
else
  echo "no package manager is known here: install OpenSSH's server and client in the image" >&2
  exit 1
fi
