# In front of facts.sh and job_end.sh.
# whether a process that is still there has been killed: it waits in the kernel then, for a disk, a file system of the network or a
# driver. SIGKILL is number 9, the bit 0x100 of the signals that are pending (proc_pid_status(5)), which makes a digit odd
killed() { # PID
  grep -qs '^SigPnd:.*[13579bdf]..$' "/proc/$1/status"
}
