# Prints what computes on a node besides the GPUs that nvidia-smi lists, as "KEY VALUE" lines for node/facts.rs. Appended to gpus.sh.
# Changes nothing.

# a device of NVIDIA's drivers, also of those that have no nvidia-smi (Jetson, WSL 2)
for device in /dev/nvidia* /dev/nvhost* /dev/dxg; do
  # WSL 2 has this device for GPUs of every maker
  [ "$device" != /dev/dxg ] || [ -e /usr/lib/wsl/lib/libcuda.so.1 ] || continue
  if [ -e "$device" ]; then
    say nvidia-device "$device"
    break
  fi
done
# accelerators of other makers: MAKER COUNT
report_devices() { # MAKER DEVICE…
  maker=$1 number=0
  shift
  for device; do [ ! -e "$device" ] || number=$((number + 1)); done
  [ "$number" = 0 ] || say accelerator "$maker" "$number"
}
# those of a vendor and class of PCI. What cannot be read is of no vendor
report_class() { # MAKER VENDOR CLASS DIRECTORY…
  maker=$1 wanted="$2 $3" number=0
  shift 3
  for device; do
    vendor='' class=''
    { read -r vendor <"$device/device/vendor" && read -r class <"$device/device/class"; } 2>/dev/null
    case "$vendor $class" in
    "$wanted"*)
      # the GPU in a processor of Intel's, also where another one draws the screen
      case $maker:$(readlink "$device/device") in intel:*/0000:00:02.0) ;; *) number=$((number + 1)) ;; esac
      ;;
    esac
  done
  [ "$number" = 0 ] || say accelerator "$maker" "$number"
}
if [ -e /dev/kfd ]; then
  # the processors are nodes as well, without a number of a GPU
  set --
  for device in /sys/class/kfd/kfd/topology/nodes/*/gpu_id; do
    number=0 units='' properties=${device%gpu_id}properties
    { read -r number <"$device"; } 2>/dev/null
    [ ! -r "$properties" ] || while read -r key value; do
      [ "$key" != simd_count ] || units=$value
    done <"$properties"
    # what is in a processor to draw the screen has fewer units than the smallest card
    [ "$number" = 0 ] || [ "${units:-48}" -lt 48 ] || set -- "$@" "$device"
  done
  [ -d /sys/class/kfd/kfd/topology/nodes ] || set -- /dev/dri/renderD*
  report_devices amd "$@"
fi
# as display controllers: what draws the screen of a machine is none
report_class intel 0x8086 0x0380 /sys/class/drm/renderD*
report_class gaudi 0x1da3 0x /sys/class/accel/accel[0-9]*
report_class tpu 0x1ae0 0x /sys/class/accel/accel[0-9]*
report_devices neuron /dev/neuron[0-9]*
report_devices ascend /dev/davinci[0-9]*
