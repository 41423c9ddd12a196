# A Docker Engine on this machine: the one that answers, or one that is installed and started. Sourced, never run.
# shellcheck shell=bash

readonly ENGINE_PID=$LAB_RUN/engine.pid
readonly ENGINE_LOG=$LAB_RUN/engine.log
readonly ENGINE_UNIT=$LAB_RUN/engine.unit

engine_answers() { timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# The process id of the engine that the lab started, or nothing. A pid file alone proves little: ids are used again.
engine_own_pid() {
  local pid
  pid=$(cat "$ENGINE_PID" 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] && printf '%s\n' "$pid"
}

engine_start() {
  engine_answers || (machine_lock engine && engine_start_locked) || exit 1
}

engine_start_locked() {
  engine_answers && return
  if [ -n "${DOCKER_HOST:-}" ]; then die "DOCKER_HOST is $DOCKER_HOST, and no engine answers there"; fi
  if ! command -v dockerd >/dev/null || ! command -v docker >/dev/null; then
    say "installing Docker Engine (docker.io)"
    apt_install docker.io iptables
    engine_answers && return
  fi
  if [ -d /run/systemd/system ]; then
    systemctl start docker || die "systemd could not start Docker" "see: journalctl -u docker"
    touch "$ENGINE_UNIT"
  else
    # A dockerd refuses to start over the pid file of one that was killed, when something else has that id now.
    engine_own_pid >/dev/null || rm -f "$ENGINE_PID"
    # In a session of its own, so that it outlives this terminal, and without the lock, so that it does not hold it.
    (cd / && exec setsid dockerd --pidfile "$ENGINE_PID" </dev/null >"$ENGINE_LOG" 2>&1 9>&-) &
  fi
  wait_for 60 engine_answers || {
    tail -n 15 "$ENGINE_LOG" >&2 2>/dev/null
    die "the Docker Engine did not answer within 60 s" "its log: $ENGINE_LOG"
  }
  say "started a Docker Engine"
}

# Stops the engine if the lab started it and nothing runs in it. Containers of others are never removed.
engine_stop_own() {
  local pid
  engine_answers || return 0
  if [ -e "$ENGINE_UNIT" ]; then
    [ -z "$(docker ps -q)" ] || { say "the Docker Engine stays: other containers run in it"; return 0; }
    systemctl stop docker.socket docker && rm -f "$ENGINE_UNIT"
  elif pid=$(engine_own_pid); then
    [ -z "$(docker ps -q)" ] || { say "the Docker Engine stays: other containers run in it"; return 0; }
    kill "$pid"
    wait_for 30 engine_gone "$pid" || die "the Docker Engine (process $pid) does not stop"
    rm -f "$ENGINE_PID" "$ENGINE_LOG"
  else
    return 0
  fi
  say "stopped the Docker Engine that the lab had started"
}

engine_gone() { ! kill -0 "$1"; }
