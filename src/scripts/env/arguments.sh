# Prepended to env/common.sh where standard input has wheels, and the script is an argument of sh. Arguments: state_dir,
# name.
# shellcheck disable=SC2034 # the scripts that follow read them
state_dir=$1 name=$2
