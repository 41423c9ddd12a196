# Appended to job/directory.sh, in the scripts that lend a job's directory to the worker that jobs share, or take it back. Processes there
# may put anything next to the job's directory, so only what root's link JOBS/ID names is a job's. While it is taken back, the link is
# called JOBS/.back@ID: the next of these steps finishes what a crash has interrupted.

# prints where the directory of a job is lent to, if it is: .worker@CLUSTER/ID
lent() { # ID
  target=$(readlink -- "$jobs_dir/$1") || return 0
  case $target in .worker@*/*/*) ;; .worker@*/"$1") printf '%s\n' "$target" ;; esac
}
# takes the directory of a job back, or finishes that
take_back() { # ID
  back=$jobs_dir/$1 link=$jobs_dir/.back@$1
  target=$(lent "$1")
  # unless another command was faster
  [ -z "$target" ] || mv -T -- "$back" "$link" 2>/dev/null || [ ! -h "$back" ] || return
  target=$(readlink -- "$link") || return 0
  if [ -d "$jobs_dir/$target" ] && [ ! -h "$jobs_dir/$target" ]; then
    error=$(mv -T -- "$jobs_dir/$target" "$back" 2>&1) || [ -d "$back" ] || { printf '%s\n' "$error" >&2 && return 1; }
  fi
  rm -f -- "$link"
}
# takes all directories back that the shared worker of a cluster has, but for that of this job: no other one runs there. Removes what is no
# job's
take_back_others() { # CLUSTER ID
  worker=$jobs_dir/.worker@$1
  mkdir -p -- "$worker" && chmod 700 -- "$worker" || return
  for link in "$jobs_dir"/* "$jobs_dir/.back@"*; do
    case $(readlink -- "$link") in ".worker@$1/$2") continue ;; ".worker@$1/"*) ;; *) continue ;; esac
    link=${link##*/}
    take_back "${link#.back@}" || return
  done
  kept=$(lent "$2")
  find "$worker" -mindepth 1 -maxdepth 1 ! -name "${kept##*/}" -exec rm -rf -- {} +
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
