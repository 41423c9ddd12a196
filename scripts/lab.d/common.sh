# What every part of the lab shares: names, messages, limited waits. Sourced, never run.
# shellcheck shell=bash

LAB_SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
LAB_ROOT=$(dirname "$LAB_SCRIPTS")
# shellcheck disable=SC2034 # the parts that are sourced beside this one use them
readonly LAB_SCRIPTS LAB_ROOT LAB_KEY=$LAB_ROOT/.lab/id_ed25519 LAB_PASSWORDS=$LAB_ROOT/.lab/passwords LAB_LABEL=hvdctl.lab=1 LAB_IMAGE=hvdctl-lab/horovod

# What belongs to the machine and not to one checkout: the engine's process id and log, the builds' logs, the locks.
readonly LAB_RUN=/run/hvdctl-lab

say() { printf 'lab: %s\n' "$*" >&2; }

die() {
  printf 'lab: error: %s\n' "$1" >&2
  shift
  [ $# -eq 0 ] || printf 'lab:   %s\n' "$@" >&2
  exit 1
}

need_root() {
  [ "$(id -u)" = 0 ] || die "this needs root (it runs a Docker Engine and privileged containers)" "try: sudo $0 $*"
}

# wait_for SECONDS COMMAND…: true as soon as the command succeeds, false when the time is over.
wait_for() {
  local -r deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.1
  done
}

# One such change at a time on this machine, whatever the checkout. Held until this (sub)shell ends; a process that is to
# outlive it must close descriptor 9.
machine_lock() { # NAME
  mkdir -p "$LAB_RUN"
  exec 9>"$LAB_RUN/$1.lock"
  flock -n 9 && return
  say "another command works on the lab's $1; waiting for it (at most 20 minutes)"
  flock -w 1200 9 || die "the other command still runs" "find it with: fuser -v $LAB_RUN/$1.lock"
}

# apt-get install, without questions and without starting services. Lists are fetched only when apt knows too little. One at a time:
# scripts/test installs linters while the lab installs an engine.
apt_install() {
  command -v apt-get >/dev/null || die "these packages are needed, and this is not a Debian: $*"
  mkdir -p "$LAB_RUN"
  (
    flock -w 1200 8 || die "another installation takes too long" "find it with: fuser -v $LAB_RUN/apt.lock"
    # What a package starts must not keep the lock.
    apt_install_locked "$@" 8>&-
  ) 8>"$LAB_RUN/apt.lock" || exit 1
}

apt_install_locked() {
  local -r get=(apt-get -qy -o DPkg::Lock::Timeout=600)
  local log
  log=$(mktemp)
  export DEBIAN_FRONTEND=noninteractive
  if ! "${get[@]}" install --no-install-recommends "$@" >"$log" 2>&1; then
    if ! { "${get[@]}" update && "${get[@]}" install --no-install-recommends "$@"; } >"$log" 2>&1; then
      tail -n 15 "$log" >&2
      rm -f "$log"
      die "apt-get could not install: $*"
    fi
  fi
  rm -f "$log"
}
