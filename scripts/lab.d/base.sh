# A base image debian:SUITE: the one that is here, a registry's, or one made from Debian's packages. Sourced, never run.
# shellcheck shell=bash

base_ensure() { # SUITE
  docker image inspect "debian:$1" >/dev/null 2>&1 || (machine_lock base && base_make "$1") || exit 1
}

base_make() { # SUITE
  local -r suite=$1 image=debian:$1
  docker image inspect "$image" >/dev/null 2>&1 && return
  # Without a registry in reach a pull can hang on a silent address for minutes.
  say "pulling $image (at most 45 s)"
  timeout 45 docker pull -q "$image" >/dev/null 2>&1 && return
  say "no registry gives it: making $image from Debian's packages (about 40 s)"
  command -v debootstrap >/dev/null || apt_install debootstrap
  (
    work=$(mktemp -d -p /var/tmp)
    trap 'rm -rf "$work"' EXIT
    base_bootstrap "$suite" "$work/root" >"$work/log" 2>&1 || { tail -n 15 "$work/log" >&2; die "debootstrap failed"; }
    base_carry_settings "$suite" "$work/root"
    tar -C "$work/root" -c --numeric-owner \
        --exclude='./usr/share/locale/*' --exclude='./usr/share/man/*' --exclude='./usr/share/info/*' \
        --exclude='./var/lib/apt/lists/*' --exclude='./var/cache/*' --exclude='./var/log/*' --exclude='./dev/*' . |
      docker import -c 'CMD ["bash"]' -c "LABEL $LAB_LABEL" - "$image" >/dev/null
  ) || exit 1
}

base_bootstrap() { # SUITE DIRECTORY
  local mirror script=
  # The mirror that this machine itself uses, if it is a Debian; else none, and debootstrap chooses.
  mirror=$(base_apt_sources "$1" | awk -v suite="$1" '$3 == suite { print $2; exit }')
  # An older debootstrap does not know the names of newer suites.
  [ -e "/usr/share/debootstrap/scripts/$1" ] || script=sid
  debootstrap --variant=minbase --include=ca-certificates "$1" "$2" "$mirror" $script
}

# This machine's Debian sources, with the suite in place of its own, as lines for sources.list.
base_apt_sources() { # SUITE
  local own
  # shellcheck source=/dev/null
  own=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
  [ -n "$own" ] || return 0
  # shellcheck disable=SC2016 # apt expands it
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null |
    awk -v own="$own" -v suite="$1" 'index($2, own) == 1 && !seen[$0]++ { sub(own, suite, $2); print "deb", $1, $2, $3 }'
}

# A machine may reach Debian's and Python's packages only with settings of its own: those go into the base, so that no file
# of the project need name them.
base_carry_settings() { # SUITE DIRECTORY
  local -r root=$2
  local sources
  sources=$(base_apt_sources "$1")
  [ -z "$sources" ] || printf '%s\n' "$sources" >"$root/etc/apt/sources.list"
  apt-config dump | grep -E '^Acquire::(http|https|Check-|Retries|Force)' >"$root/etc/apt/apt.conf.d/99lab-host" || true
  if [ -n "$(ls -A /usr/local/share/ca-certificates 2>/dev/null)" ]; then
    cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
    chroot "$root" update-ca-certificates >/dev/null 2>&1
  fi
  [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/pip.conf"
}
