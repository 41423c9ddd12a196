# Prepended to the scripts that call nvidia-smi: node/gpus.sh, node/health.sh and node/doctor.sh.
# in WSL 2 it is where no sshd looks for programs
PATH=$PATH:/usr/lib/wsl/lib
# Prints the output of a program, and "exit CODE" as the last line. If the driver hangs, the program may not even be killed: then only
# its reader ends, and there is no exit code.
limited() { # SECONDS PROGRAM ARGUMENT…
  seconds=$1
  shift
  { { timeout "$seconds" "$@"; printf '\nexit %s\n' $?; } </dev/null 2>&1 & } | timeout "$((seconds + 2))" cat
}
