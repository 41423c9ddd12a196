# Prepended to node/facts.sh and job/end.sh.
# tests whether a process that still exists has been killed: it then waits in the kernel, for a disk, a network file system or a driver.
# SIGKILL is number 9, the bit 0x100 of the pending signals (proc_pid_status(5)), which makes a digit odd
killed() { # PID
  grep -qs '^SigPnd:.*[13579bdf]..$' "/proc/$1/status"
}
