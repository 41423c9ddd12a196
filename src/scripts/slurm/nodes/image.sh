# Install Slurm, munge and Python, which the containers of the cluster's own Slurm need
if command -v slurmctld && command -v slurmd && command -v munged && command -v python3; then exit 0; fi
if ! command -v apt-get; then
  echo "this image has no slurmctld, slurmd and munged, and no apt-get that could install them: name another image: hvdctl slurm up IMAGE" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update && apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge python3 || exit
rm -rf /var/lib/apt/lists/*
