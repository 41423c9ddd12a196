# The base image debian:bookworm: the one that is here, a registry's, or one made from Debian's packages. Sourced, never run.
# shellcheck shell=bash

base_ensure() {
  docker image inspect "$LAB_BASE" >/dev/null 2>&1 || (machine_lock base && base_make) || exit 1
}

base_make() {
  docker image inspect "$LAB_BASE" >/dev/null 2>&1 && return
  # Without a registry in reach a pull can hang on a silent address for minutes.
  say "pulling $LAB_BASE (at most 45 s)"
  timeout 45 docker pull -q "$LAB_BASE" >/dev/null 2>&1 && return
  say "no registry gives it: making $LAB_BASE from Debian's packages (about 40 s)"
  command -v debootstrap >/dev/null || apt_install debootstrap
  (
    work=$(mktemp -d -p /var/tmp)
    trap 'rm -rf "$work"' EXIT
    base_bootstrap "$work/root" >"$work/log" 2>&1 || { tail -n 15 "$work/log" >&2; die "debootstrap failed"; }
    base_carry_settings "$work/root"
    tar -C "$work/root" -c --numeric-owner \
        --exclude='./usr/share/locale/*' --exclude='./usr/share/man/*' --exclude='./usr/share/info/*' \
        --exclude='./var/lib/apt/lists/*' --exclude='./var/cache/*' --exclude='./var/log/*' --exclude='./dev/*' . |
      docker import -c 'CMD ["bash"]' -c "LABEL $LAB_LABEL" - "$LAB_BASE" >/dev/null
  ) || exit 1
}

base_bootstrap() {
  local mirror
  # The mirror that this machine itself uses, if it is a Debian; else debootstrap's own choice.
  mirror=$(base_apt_sources | awk '$3 == "bookworm" { print $2; exit }')
  debootstrap --variant=minbase --include=ca-certificates bookworm "$1" ${mirror:+"$mirror"}
}

# This machine's Debian sources as lines for sources.list.
base_apt_sources() {
  # shellcheck disable=SC2016 # apt expands it
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null |
    awk '/bookworm/ && !seen[$0]++ { print "deb", $1, $2, $3 }'
}

# A machine may reach Debian's and Python's packages only with settings of its own: those go into the base, so that no file
# of the project need name them.
base_carry_settings() {
  local -r root=$1
  local sources
  sources=$(base_apt_sources)
  [ -z "$sources" ] || printf '%s\n' "$sources" >"$root/etc/apt/sources.list"
  apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries|Force)' >"$root/etc/apt/apt.conf.d/99lab-host" || true
  if [ -n "$(ls -A /usr/local/share/ca-certificates 2>/dev/null)" ]; then
    cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
    chroot "$root" update-ca-certificates >/dev/null 2>&1
  fi
  [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/pip.conf"
}
