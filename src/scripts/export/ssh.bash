# horovodrun reaches the other nodes by ssh; here that is a step of the job
hvdctl_programs=$(mktemp -d) || exit
trap 'rm -rf "$hvdctl_programs"' EXIT
cat >"$hvdctl_programs/ssh" <<'end'
#!/bin/bash
# what horovodrun did not get (Gloo)
# shellcheck source=/dev/null
[ ! -e "${0%/*}/environment" ] || . "${0%/*}/environment" || exit
host=
while [ $# -gt 0 ]; do
  case $1 in
  -[bcDEeFIiJLlmOopQRSWw]) shift ;;
  -*) ;;
  *)
    [ -z "$host" ] || break
    host=$1
    ;;
  esac
  shift
done
# the node with this address
for pair in $hvdctl_names; do
  case $pair in "$host="*) host=${pair#*=} ;; esac
done
# what the job as a whole asked for is not for a step of one process
for variable in $(env | sed -n 's/^\(SLURM_[A-Z0-9_]*\)=.*/\1/p'); do
  case $variable in SLURM_JOB* | SLURM_CONF | SLURM_CLUSTER_NAME) ;; *) unset "$variable" ;; esac
done
exec srun --nodes=1 --ntasks=1 --nodelist="$host" --overlap --mem=0 --mpi=none --cpu-bind=none --unbuffered --export=ALL --quiet sh -c "$*"
end
chmod 755 "$hvdctl_programs/ssh"
PATH=$hvdctl_programs:$PATH
