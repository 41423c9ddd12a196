start() {
  STEP --ntasks="$ranks" --distribution=block bash -c '
    read -r -a counts <<<"$counts"
    list=$(printf "\"%s\"," $workers)
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID NODE_RANK=$SLURM_NODEID GROUP_RANK=$SLURM_NODEID
    export WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=${counts[SLURM_NODEID]}
    export TF_CONFIG="{\"cluster\":{\"worker\":[${list%,}]},\"task\":{\"type\":\"worker\",\"index\":$RANK}}"
    export JAX_COORDINATOR_ADDRESS=$MASTER_ADDR:$MASTER_PORT JAX_NUM_PROCESSES=$ranks JAX_PROCESS_ID=$RANK
    exec "$@"' rank COMMAND
}
