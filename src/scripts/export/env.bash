export hvdctl_workers
start() {
  STEP --ntasks="$hvdctl_ranks" --distribution=block bash -c '
    read -r -a hvdctl_each <<<"$hvdctl_counts"
    hvdctl_list=$(printf "\"%s\"," $hvdctl_workers)
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID GROUP_RANK=$SLURM_NODEID
    export WORLD_SIZE=$hvdctl_ranks LOCAL_WORLD_SIZE=${hvdctl_each[SLURM_NODEID]}
    export TF_CONFIG="{\"cluster\":{\"worker\":[${hvdctl_list%,}]},\"task\":{\"type\":\"worker\",\"index\":$RANK}}"
    export JAX_COORDINATOR_ADDRESS=$MASTER_ADDR:$MASTER_PORT JAX_NUM_PROCESSES=$hvdctl_ranks JAX_PROCESS_ID=$RANK
    exec "$@"' rank COMMAND
}
