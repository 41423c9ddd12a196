# Prepended to env/common.sh where standard input has wheels, and the script is an argument of sh. Arguments: state_dir, name.
state_dir=$1 name=$2
