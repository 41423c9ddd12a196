# Behind lease.sh. Shows the lease of this node, if there is one. Changes nothing.
if folder has_lease; then show; fi
