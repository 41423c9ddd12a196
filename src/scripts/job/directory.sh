# Prepended to scripts that use a job's directory, JOBS/ID. While the job runs in the worker that jobs share, that is a link to
# .worker@CLUSTER/ID, because this worker has mounted .worker@CLUSTER in the place of all jobs. Processes in containers may have put links
# to other files of the node into these directories, so a file is used only after `enter`, and only if it is `regular`.

# enters the directory of a job; fails if it is missing, or leads elsewhere
enter() { # ID
  cd -P -- "$jobs_dir" && jobs=$PWD && cd -P -- "./$1" || return
  case $PWD in "$jobs/$1" | "$jobs/.worker@"*"/$1") return 0 ;; esac
  echo "$jobs_dir/$1: a link to $PWD, which is no directory of a job" >&2
  return 1
}
regular() { # FILE
  [ -f "$1" ] && [ ! -h "$1" ]
}
# replaces a file of the directory by standard input
put() { # NAME
  rm -rf -- "$1.new" && dd of="$1.new" oflag=nofollow conv=excl status=none && mv -fT -- "$1.new" "$1"
}
