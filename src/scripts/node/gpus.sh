# Prints what nvidia-smi lists as "KEY VALUE" lines for node/gpus.rs. Appended to node/machine.sh, prepended to worker/ready.sh.
# Changes nothing.
say() { printf '%s\n' "$*"; }

# prints "KEY LINE" for each line of nvidia-smi, and "KEY exit CODE" last. If the driver hangs, nvidia-smi may not even be killed:
# then only its reader ends, and there is no exit code
nvidia_smi() { # KEY ARGUMENT…
  key=$1
  shift
  { { timeout 20 nvidia-smi "$@"; printf '\nexit %s\n' $?; } </dev/null 2>&1 & } |
    timeout 22 cat | while IFS= read -r line; do say "$key" "$line"; done
}
if command -v nvidia-smi >/dev/null 2>&1; then
  say nvidia-smi yes
  nvidia_smi gpu -L &
  # a GPU in MIG mode that has no MIG devices is listed as any other, and the list has no memory
  nvidia_smi mig --query-gpu=index,mig.mode.current,memory.total --format=csv,noheader,nounits &
  wait
fi
