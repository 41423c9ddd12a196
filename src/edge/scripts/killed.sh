# In front of facts.sh and job_end.sh.
# whether a process that is still there has been killed: it waits in the kernel then, for a disk, a file system of the network or a
# driver. SIGKILL is number 9, the bit 0x100 of the signals that are pending (proc_pid_status(5))
killed() { # PID
  pending=$(sed -n 's/^SigPnd:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
  [ "$((0x${pending:-0} & 0x100))" -ne 0 ]
}
