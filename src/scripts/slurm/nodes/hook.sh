#!/bin/sh
# What slurmd calls when a job gets this node (prolog), when it gives it back (epilog), and now and then (check): the name of this file.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin SLURM_CONF=/etc/slurm/slurm.conf
export PATH SLURM_CONF
exec python3 -I "${0%/*}/hook.py" "${0##*/}"
