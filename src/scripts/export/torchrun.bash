start() {
  STEP --nodes="$hvdctl_nodes" --ntasks="$hvdctl_nodes" --ntasks-per-node=1 --cpu-bind=none bash -c '
    read -r -a hvdctl_each <<<"$hvdctl_counts"
    exec torchrun --nnodes "$hvdctl_nodes" --node_rank "$SLURM_NODEID" \
      --nproc_per_node "${hvdctl_each[SLURM_NODEID]}" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
      --max_restarts 0 --no_python "$@"' \
    agent COMMAND
}
