# Prints the health of a node's GPUs as "KEY VALUE" lines for gpus/health/report.rs. Requires root for the kernel log. Changes nothing.
# Appended to node/nvidia_smi.sh. Variables: diagnose (not empty: also ask DCGM, if it is installed).
LC_ALL=C
export LC_ALL
PATH=$PATH:/usr/sbin:/sbin
say() { printf '%s\n' "$*"; }

# prints "KEY LINE" for each line of a program, and "KEY exit CODE" last
query() { # KEY SECONDS PROGRAM ARGUMENT…
  key=$1
  shift
  # of each GPU's document, a third is the clocks that it may have
  limited "$@" | sed -e '/<supported_graphics_clock>/d' -e "s/^/$key /"
}

# GPUs of the driver, listed by nvidia-smi or not; an operator may have excluded some
list_pci() {
  for device in /sys/bus/pci/drivers/nvidia/*:*:*.*; do
    [ -e "$device" ] || continue
    device=${device##*/}
    known=/proc/driver/nvidia/gpus
    # a node that is a container itself sees the buses and errors of all GPUs of its machine, but has only some of them
    if [ -d "$known" ] && [ ! -e "$known/$device" ]; then
      say pci-foreign "$device"
      continue
    fi
    # the driver may hang here, too
    { timeout 2 cat "$known/$device/information" 2>/dev/null & } | timeout 3 cat | grep -q 'Excluded:.*Yes' || say pci "$device"
  done
}

# counts the driver's errors by GPU and number, and prints the last of each
count_xids() {
  awk 'match($0, /NVRM: Xid \([^)]*\): *[0-9]+/) {
    key = substr($0, RSTART, RLENGTH)
    count[key]++
    last[key] = substr($0, RSTART, 300)
  }
  END { for (key in count) print "xid", count[key], last[key] }'
}
reaches_boot() { printf '%s\n' "$1" | head -n 20 | grep -q 'Linux version '; }
read_kernel_log() {
  kernel_log=$(timeout 5 dmesg 2>&1) || {
    reason="dmesg: ${kernel_log##*dmesg: }"
    kernel_log=
  }
  # the kernel keeps only its newest messages; the journal may have all
  if ! reaches_boot "$kernel_log" && command -v journalctl >/dev/null 2>&1; then
    journal=$(timeout 5 journalctl -q -k -b -o cat --no-pager 2>/dev/null) || journal=
    if reaches_boot "$journal" || [ -z "$kernel_log" ]; then kernel_log=$journal; fi
  fi
  if [ -z "$kernel_log" ]; then
    say log unread "$(printf '%s\n' "${reason:-it is empty}" | head -n 1)"
  elif ! reaches_boot "$kernel_log"; then
    say log partial
  fi
  printf '%s\n' "$kernel_log" | count_xids
}

if command -v nvidia-smi >/dev/null 2>&1; then
  say nvidia-smi yes
  query xml 20 nvidia-smi -q -x &
  # printed behind the document, of which sed writes parts of lines
  rest=$(
    query link 10 nvidia-smi nvlink -s
    list_pci
    read_kernel_log
    if [ -n "$diagnose" ] && command -v dcgmi >/dev/null 2>&1; then
      say dcgmi
      query dcgmi 120 dcgmi diag -r 1
    fi
  )
  wait
  say "$rest"
fi
exit 0
