# the nodes in their order, the ranks of each, and where rank 0 is
hvdctl_nodes=0 hvdctl_counts='' hvdctl_hosts='' hvdctl_workers=''
find_nodes() {
  local names tasks name count slot left=$hvdctl_ranks
  names=$(scontrol show hostnames "$SLURM_JOB_NODELIST") || exit
  MASTER_ADDR=${names%%$'\n'*}
  MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
  # 2(x3),1 is 2 2 2 1
  tasks=$(awk -F'[(x)]+' '{ for (i = 0; i < ($2 ? $2 : 1); i++) print $1 }' <<<"${SLURM_TASKS_PER_NODE//,/$'\n'}")
  while [ "$left" -gt 0 ] && read -r name <&3 && read -r count <&4; do
    [ "$count" -le "$left" ] || count=$left
    hvdctl_nodes=$((hvdctl_nodes + 1)) left=$((left - count)) hvdctl_counts="$hvdctl_counts$count "
    hvdctl_hosts="${hvdctl_hosts:+$hvdctl_hosts,}$name:$count"
    for ((slot = 0; slot < count; slot++)); do hvdctl_workers="$hvdctl_workers$name:$((MASTER_PORT + slot)) "; done
  done 3<<<"$names" 4<<<"$tasks"
  [ "$left" = 0 ] || {
    echo "Slurm has allocated fewer tasks than the $hvdctl_ranks ranks of this job" >&2
    exit 1
  }
}
find_nodes
export MASTER_ADDR MASTER_PORT hvdctl_ranks hvdctl_nodes hvdctl_counts
