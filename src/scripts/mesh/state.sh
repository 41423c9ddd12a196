# Prints the node's clock, and below it the state of the encrypted network as its agent has written it. Variables: directory.
date +%s.%N
[ ! -f "$directory/state.json" ] || head -c 1048576 "$directory/state.json"
