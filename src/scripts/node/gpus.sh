# Prints what nvidia-smi lists as "KEY VALUE" lines for node/gpus.rs. Appended to node/nvidia_smi.sh, prepended to worker/ready.sh.
# Changes nothing.
say() { printf '%s\n' "$*"; }

# prints "KEY LINE" for each line of nvidia-smi, and "KEY exit CODE" last
nvidia_smi() { # KEY ARGUMENT…
  key=$1
  shift
  limited 20 nvidia-smi "$@" | while IFS= read -r line; do say "$key" "$line"; done
}
if command -v nvidia-smi >/dev/null 2>&1; then
  say nvidia-smi yes
  nvidia_smi gpu -L &
  # a GPU in MIG mode that has no MIG devices is listed as any other, and the list has no memory
  nvidia_smi mig --query-gpu=index,mig.mode.current,memory.total --format=csv,noheader,nounits &
  wait
fi
