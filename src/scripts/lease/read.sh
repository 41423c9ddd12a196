# Appended to lease/common.sh. Prints the lease of this node, if there is one. Changes nothing.
if directory has_lease; then show; fi
