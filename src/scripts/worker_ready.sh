# Asks a worker for what ranks need there, as "KEY VALUE" lines for worker/ready.rs. Appended to gpus.sh; runs in the worker and changes
# nothing.
# an image may lack nvidia-smi and still get GPUs; a device that the container has lost cannot be opened
for device in /dev/nvidia[0-9]*; do
  if (: <"$device") 2>/dev/null; then say device "$device"; fi
done
exit 0
