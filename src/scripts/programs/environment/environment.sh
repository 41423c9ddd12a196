# Prepended to the scripts that start programs of hvdctl's own, sshd or ssh from the environment of ranks. An image, a module or a
# virtualenv sets these variables for the programs of ranks, and any other program would get the same libraries, files and settings.
# Its own variables have a prefix: one of ranks with the same name would change.
#
# Those with which glibc does not trust a user (sysdeps/generic/unsecvars.h), and OpenSSL's.
hvdctl_libraries="LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT LD_ASSUME_KERNEL LD_BIND_NOT LD_BIND_NOW LD_DEBUG LD_DEBUG_OUTPUT LD_DYNAMIC_WEAK \
  LD_HWCAP_MASK LD_ORIGIN_PATH LD_PROFILE LD_PROFILE_OUTPUT LD_SHOW_AUXV LD_USE_LOAD_BIAS LD_VERBOSE LD_WARN GLIBC_TUNABLES GCONV_PATH \
  GETCONF_DIR HOSTALIASES LOCALDOMAIN LOCPATH NIS_PATH NLSPATH RESOLV_HOST_CONF RES_OPTIONS MALLOC_ARENA_MAX MALLOC_ARENA_TEST \
  MALLOC_CHECK_ MALLOC_MMAP_MAX_ MALLOC_MMAP_THRESHOLD_ MALLOC_PERTURB_ MALLOC_TOP_PAD_ MALLOC_TRACE MALLOC_TRIM_THRESHOLD_ \
  OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES"
# sets them aside as HVDCTL_RANKS_NAME, from which environment.py and hvdctl_give_back restore them; fails if there are none
set_aside() {
  hvdctl_aside=
  for hvdctl_name in $hvdctl_libraries; do
    eval "[ -z \"\${$hvdctl_name+x}\" ] || { export HVDCTL_RANKS_$hvdctl_name=\"\$$hvdctl_name\"; unset $hvdctl_name; hvdctl_aside=1; }"
  done
  [ -n "$hvdctl_aside" ]
}
# a line of sh, as another node may run it
# shellcheck disable=SC2016 # expanded where it runs
hvdctl_give_back="for hvdctl_name in $hvdctl_libraries; do"'
  eval "[ -z \"\${HVDCTL_RANKS_$hvdctl_name+x}\" ] || { export $hvdctl_name=\"\$HVDCTL_RANKS_$hvdctl_name\"; unset HVDCTL_RANKS_$hvdctl_name; }"
done'
# sets them aside, unless a program needs them to start, as one of a module may
set_aside_unless_needed() { # PROGRAM ARGUMENT…
  set_aside || return 0
  "$@" >/dev/null 2>&1 </dev/null || eval "$hvdctl_give_back"
}
# becomes sshd or ssh, with nothing of this environment but the terminal and what marks the processes of a job
become() { # PROGRAM ARGUMENT…
  set_aside
  for hvdctl_name in PATH HOME TERM HVDCTL_JOB HVDCTL_RESTART HVDCTL_PROGRAM HVDCTL_PROCESS HVDCTL_PLACE HVDCTL_MAIN HVDCTL_LAUNCH_MARK HVDCTL_SHELL; do
    eval "[ -z \"\${$hvdctl_name+x}\" ] || set -- \"$hvdctl_name=\$$hvdctl_name\" \"\$@\""
  done
  exec env -i "$@"
}
