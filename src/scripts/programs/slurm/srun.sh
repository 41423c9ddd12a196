# The remote shell of a job that runs in an allocation of Slurm, in the place of ssh.sh: starts a command on a node of the allocation as a
# step of its job, as `ssh [OPTION…] ADDRESS COMMAND…` would. allocation.py has written which node has which address.
hvdctl_here=${0%/*}
hvdctl_address=
while [ $# -gt 0 ]; do
  case $1 in
  # a connection that others use: each of them is a step of its own. It lasts until the one who has opened it ends
  -N) exec cat >/dev/null ;;
  # options with a value, which may also follow the address
  -[bcDEeFIiJLlmOopQRSWw]) shift ;;
  -*) ;;
  *)
    [ -z "$hvdctl_address" ] || break
    hvdctl_address=$1
    ;;
  esac
  shift
done
while read -r hvdctl_one hvdctl_name hvdctl_resources; do
  [ "$hvdctl_one" != "$hvdctl_address" ] || hvdctl_node=$hvdctl_name hvdctl_gres=$hvdctl_resources
done <"$hvdctl_here/addresses"
if [ -z "${hvdctl_node:-}" ]; then
  echo "hvdctl: no node of the allocation has the address $hvdctl_address" >&2
  exit 255
fi
# up to 21.08, --overlap shares CPUs and no GPUs (seen with 20.11): what asks for GPUs waits until the ranks have ended that have them, and
# what ends ranks, or only looks whether the node answers, needs none
case $* in 'sh '*/reap.py* | true) hvdctl_gres=none ;; esac
# what the job as a whole asked for is not for a step of one process
for hvdctl_variable in $(env | sed -n 's/^\(SLURM_[A-Z0-9_]*\)=.*/\1/p'); do
  case $hvdctl_variable in SLURM_JOB* | SLURM_CONF | SLURM_CLUSTER_NAME | SLURM_CPU_BIND) ;; *) unset "$hvdctl_variable" ;; esac
done
set_aside_unless_needed srun --version
# on the node: $1: this directory, $2: the node, $3: the command. Slurm may send SIGTERM to the first process of a step alone, and ends the
# rest with it: reap.py passes it on to the ranks, and waits for what the command has started
# shellcheck disable=SC2016 # expanded on the node
hvdctl_step=$hvdctl_give_back'
trap "" USR1 USR2
export HVDCTL_NODE="$2"
[ "$3" != true ] || exit 0
exec sh "$1/hvdctl-python" "$1/reap.py" step "$3"'
exec srun --job-name="hvdctl.${hvdctl_here##*/}" --nodes=1 --ntasks=1 --nodelist="$hvdctl_node" ${hvdctl_gres:+"--gres=$hvdctl_gres"} --overlap --mem=0 --mpi=none --unbuffered --export=ALL --quiet \
  sh -c "$hvdctl_step" sh "$hvdctl_here" "$hvdctl_node" "$*"
