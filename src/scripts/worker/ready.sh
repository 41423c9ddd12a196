# Asks a worker for what ranks need there, as "KEY VALUE" lines for worker/ready.rs. Appended to node/gpus.sh; runs in the worker and changes
# nothing.
# an image may lack nvidia-smi and still get GPUs; a device that the container has lost cannot be opened
if ! command -v nvidia-smi >/dev/null 2>&1; then
  for device in /dev/nvidia[0-9]*; do
    # a driver that hangs must not block the rest
    # shellcheck disable=SC2016 # expanded by the inner shell
    if timeout 5 sh -c ': <"$1"' sh "$device" 2>/dev/null; then say device "$device"; fi
  done
fi
exit 0
