# Appended to job/directory.sh, in the scripts that lend a job's directory to the worker that jobs share, or take it back. Processes there
# may have put anything next to the job's directory. A crash may leave that without its link; the next of these steps moves it back.

# prints where the directory of a job is lent to, if it is: .worker@CLUSTER/ID
lent() { # ID
  target=$(readlink -- "$jobs_dir/$1") || return 0
  case $target in .worker@*/*/*) ;; .worker@*/"$1") printf '%s\n' "$target" ;; esac
}
# takes a directory back; not if it is no job's, or has the name of another job
withdraw() { # .worker@CLUSTER/ID
  case ${1##*/} in '' | *[!0-9A-Za-z-]*) return 0 ;; esac
  [ -d "$jobs_dir/$1" ] && [ ! -h "$jobs_dir/$1" ] || return 0
  back=$jobs_dir/${1##*/} ended=1
  if [ "$(lent "${1##*/}")" = "$1" ]; then
    ended=
    rm -f -- "$back" || return
  elif [ -e "$back" ] || [ -h "$back" ]; then
    return 0
  fi
  # unless another command was faster
  error=$(mv -T -- "$jobs_dir/$1" "$back" 2>&1) || [ -d "$back" ] || { printf '%s\n' "$error" >&2 && return 1; }
  # a job without its link has ended or never began
  [ -h "$back" ] || [ -z "$ended" ] || rm -rf -- "$back/env.json"
}
take_back() { # ID
  for place in "$jobs_dir/.worker@"*/"$1"; do withdraw "${place#"$jobs_dir/"}" || return; done
}
# takes all directories back that the shared worker of a cluster has, but for that of this job: no other one runs there
take_back_others() { # CLUSTER ID
  worker=$jobs_dir/.worker@$1
  mkdir -p -- "$worker" && chmod 700 -- "$worker" || return
  for place in "$worker"/*; do
    place=.worker@$1/${place##*/}
    [ "$(lent "$2")" = "$place" ] || withdraw "$place" || return
  done
}
# creates the directory of a job where the shared worker sees it; fails if there is one already
lend_new() { # CLUSTER ID
  mkdir -- "$jobs_dir/.worker@$1/$2" || return
  ln -sT -- ".worker@$1/$2" "$jobs_dir/$2" || { rmdir -- "$jobs_dir/.worker@$1/$2" && return 1; }
}
# moves the directory of a job to where the shared worker sees it, unless it is there
lend_again() { # CLUSTER ID
  [ "$(lent "$2")" != ".worker@$1/$2" ] || return 0
  mv -T -- "$jobs_dir/$2" "$jobs_dir/.worker@$1/$2" && ln -sT -- ".worker@$1/$2" "$jobs_dir/$2"
}
