# Prepended to scripts that use a job's directory, JOBS/ID. While the job runs in the worker that jobs share, that is a link to
# .worker@CLUSTER/ID, because this worker has mounted .worker@CLUSTER in the place of all jobs. Processes in containers may have put links
# to other files of the node into these directories, and exchange them at any time, so a file is used only after `enter`, and only if it is
# `regular`; it is read only through `open_regular`.

# enters the directory of a job; fails if it is missing, or leads elsewhere
enter() { # ID
  # of the kernel: what a shell has found before it changes its directory may be another one
  cd -P -- "$jobs_dir" && jobs=$(readlink /proc/self/cwd) && cd -P -- "./$1" && place=$(readlink /proc/self/cwd) || return
  case $place in "$jobs/$1" | "$jobs/.worker@"*"/$1") return 0 ;; esac
  echo "$jobs_dir/$1: a link to $place, which is not a job's directory" >&2
  return 1
}
regular() { # FILE
  [ -f "$1" ] && [ ! -h "$1" ]
}
# opens a file as descriptor 5, if it is `regular`. A link may have been there in between: the opened file has to be the one of this name
open_regular() { # FILE
  regular "$1" && { command exec 5<"$1"; } 2>/dev/null || return
  named=$(stat -c '%f %d:%i' -- "$1") && opened=$(stat -L -c '%d:%i' /proc/self/fd/5) || return
  case $named in 8*" $opened") ;; *) return 1 ;; esac
}
# replaces a file of the directory by standard input
put() { # NAME
  rm -rf -- "$1.new" && dd of="$1.new" oflag=nofollow conv=excl status=none && mv -fT -- "$1.new" "$1"
}
