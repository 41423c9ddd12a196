# Follows upload/common.sh. Creates the directory `relay` in .NAME@CLUSTER: a relay spools there what it receives of the data, and writes it
# to the pipe from which data/apply.sh reads.
mkdir -p "$known" && rm -rf "$known/relay" && mkdir -m 700 "$known/relay" && mkfifo -m 600 "$known/relay/pipe"
