# Prints `yes` if the cluster has its own Slurm, by the key of its daemons. Variables: directory.
[ ! -s "$directory/munge.key" ] || echo yes
