start() {
  STEP --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpu-bind=none bash -c '
    read -r -a counts <<<"$counts"
    exec torchrun --nnodes "$nodes" --node_rank "$SLURM_NODEID" --nproc_per_node "${counts[SLURM_NODEID]}" \
      --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" --max_restarts 0 --no_python "$@"' \
    agent COMMAND
}
