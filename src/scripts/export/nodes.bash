# the nodes in their order, the ranks of each, and where rank 0 is
hvdctl_nodes=0 hvdctl_counts='' hvdctl_hosts='' hvdctl_workers='' hvdctl_names=''
# a node's name in Slurm need not be a host name: by its address there, or else by one that is found on it, the others reach it
find_address() { # NODE NODES-OF-SLURM
  address=$(sed -n "s/^NodeName=$1 .* NodeAddr=\([^ ]*\).*/\1/p" <<<"$2")
  case ${address:=$1} in
  *[!0-9.]*) address=$(getent ahostsv4 "$address" | awk '$1 !~ /^127\./ { print $1; exit }') ;;
  esac
  [ -n "$address" ] || address=$(srun --nodes=1 --ntasks=1 --nodelist="$1" --overlap --mem=0 --mpi=none --quiet hostname -I)
  address=${address%%[[:space:]]*}
  hvdctl_names="$hvdctl_names${address:=$1}=$1 "
}
find_nodes() {
  local names tasks name count slot known address left=$hvdctl_ranks
  names=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || exit
  known=$(scontrol --oneliner show node "$SLURM_JOB_NODELIST" 2>/dev/null)
  find_address "${names%%$'\n'*}" "$known"
  MASTER_ADDR=$address
  MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
  # 2(x3),1 is 2 2 2 1
  tasks=$(awk -F'[(x)]+' '{ for (i = 0; i < ($2 ? $2 : 1); i++) print $1 }' <<<"${SLURM_TASKS_PER_NODE//,/$'\n'}")
  while [ "$left" -gt 0 ] && read -r name <&3 && read -r count <&4; do
    [ "$count" -le "$left" ] || count=$left
    [ "$hvdctl_nodes" = 0 ] || find_address "$name" "$known"
    hvdctl_nodes=$((hvdctl_nodes + 1)) left=$((left - count)) hvdctl_counts="$hvdctl_counts$count "
    hvdctl_hosts="${hvdctl_hosts:+$hvdctl_hosts,}$address:$count"
    for ((slot = 0; slot < count; slot++)); do hvdctl_workers="$hvdctl_workers$address:$((MASTER_PORT + slot)) "; done
  done 3<<<"$names" 4<<<"$tasks"
  [ "$left" = 0 ] || {
    echo "Slurm has allocated fewer tasks than the $hvdctl_ranks ranks of this job" >&2
    exit 1
  }
}
find_nodes
export MASTER_ADDR MASTER_PORT hvdctl_ranks hvdctl_nodes hvdctl_counts hvdctl_names
