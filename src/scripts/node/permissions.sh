# Prepended to scripts, after node/close.sh. Finds out whether anybody but root and the login that hvdctl uses can change directories in
# which root works: OpenSSH refuses keys in such a place for the same reason (StrictModes).
newline='
'
# lines "WHAT ROLE PATH" with the roles `above`, `link`, `own` and `parent`, in which a directory is to be created
steps=
# each path once
paths=$newline

need_state() { # PATH
  case $paths in *"$newline$1$newline"*) ;; *) paths=$paths$1$newline ;; esac
}
step() { # WHAT ROLE PATH
  steps="$steps$1 $2 $3$newline"
  need_state "$3"
}
# notes each directory and each link through which a path leads, up to what does not exist
follow() { # WHAT PATH
  rest=${2#/} at='' links=0 role=own
  while [ -n "$rest" ]; do
    part=${rest%%/*}
    case $rest in */*) rest=${rest#*/} ;; *) rest= ;; esac
    case $part in '' | .) continue ;; esac
    if [ "$part" = .. ]; then
      step "$1" above "${at:-/}"
      at=${at%/*}
    elif [ -h "$at/$part" ]; then
      links=$((links + 1))
      [ "$links" -le 40 ] || break
      step "$1" above "${at:-/}"
      step "$1" link "$at/$part"
      target=$(readlink -- "$at/$part") || return
      rest=$target/$rest
      case $target in /*) at= ;; esac
    elif [ -e "$at/$part" ]; then
      step "$1" above "${at:-/}"
      at=$at/$part
    else
      role=parent
      break
    fi
  done
  step "$1" "$role" "${at:-/}"
}
# sets `trusted`, the users who are root or may become it. In a user namespace all that is not mapped, such as the node's root, has the
# overflow number; in that of a rootless engine, which is the login's, other numbers mean other users
find_trusted() {
  login=${HVDCTL_LOGIN:-$(id -u):$(id -g)} mapped=0 numbers=same own=
  # the shell's own user, without another program
  while read -r field _ own_uid _; do
    [ "$field" != Uid: ] || own=$own_uid
  done 2>/dev/null </proc/self/status || :
  trusted=" 0 ${own:-$(id -u)} " login=${login%%:*}
  read -r _ mapped _ 2>/dev/null </proc/self/uid_map || :
  if [ "$mapped" != 0 ]; then
    trusted="$trusted$(cat /proc/sys/kernel/overflowuid) "
    [ "$mapped" != "$login" ] || login=0 numbers=
  fi
  trusted="$trusted$login "
}
# tests whether a group gives nobody else anything, such as an empty one. With an ACL the group's bits are those of the ACL's mask
is_harmless() { # GID PATH
  if [ -z "$numbers" ]; then
    # there the login's own group is 0
    [ "$1" = 0 ] && set -- "${HVDCTL_LOGIN##*:}" "$2" || return
  elif [ "$1" = 0 ]; then
    # root's own group: who is in it besides has a system's account
    case $(ls -ld -- "$2") in ??????????+*) return 1 ;; *) return 0 ;; esac
  fi
  case $(ls -ld -- "$2") in ??????????+*) return 1 ;; esac
  is_private "$1"
}
# prints a fault of a path, as node/permissions.rs reads it, for each directory for which it has one of these roles
expose() { # FAULT ROLES BITS PATH
  owner=$(stat -c '%U/%G' -- "$4" | tr -d ' ') || return
  printf '%s' "$steps" | while IFS= read -r line; do
    what=${line%% *} role=${line#* } path=${line#* * }
    [ "$path" = "$4" ] || continue
    case " $2 " in *" ${role%% *} "*) ;; *) continue ;; esac
    printf '%s\n' "exposed $what $1 $3 ${owner%%/*} ${owner#*/} $4"
  done
}
judge() { # MODE BITS UID GID PATH
  case $trusted in
  *" $3 "*) ;;
  *)
    case $1 in
    l*) expose link link "$2" "$5" ;;
    *) expose owner 'above own parent' "$2" "$5" ;;
    esac
    return
    ;;
  esac
  case $1 in
  l*) return 0 ;;
  ????????w?) fault=others ;;
  ?????w????)
    if is_harmless "$4" "$5"; then return 0; fi
    fault=group
    ;;
  *) return 0 ;;
  esac
  case $1 in
  # others may create what is not there yet, but replace nothing
  *[tT]) expose "$fault" own "$2" "$5" && expose create parent "$2" "$5" ;;
  *) expose "$fault" 'above own parent' "$2" "$5" ;;
  esac
}
# prints what others can change of what was noted. Calls a function with MODE BITS UID GID PATH of each path, too
report_exposed() { # FUNCTION
  find_trusted
  set -f
  IFS=$newline
  # one process for all of them; that of a job may be removed meanwhile
  # shellcheck disable=SC2086 # each line is an argument
  states=$(stat -c '%A %a %u %g %n/' -- $paths) || for path in $paths; do
    [ ! -e "$path" ] || stat -- "$path" >/dev/null || exit
  done
  also=$1
  for state in $states; do
    unset IFS
    path=/${state#*/}
    path=${path%/}
    # shellcheck disable=SC2086 # these are letters and numbers
    set -- ${state%%/*} "$path"
    judge "$@" && "$also" "$@" || exit
  done
  unset IFS
  set +f
}
# ends a script that is about to write to a directory, or to run what is there, if others can change it or what is above it: nobody may have
# looked at the facts of the node. Others may create what is missing, if `create` is given. What is above the home directory of a login
# decides about the login itself, and sshd does not look there either
refuse_exposed() { # DIRECTORY [create]
  exposed=$(follow it "$1" && report_exposed :) || exit
  [ -n "$exposed" ] || return 0
  home=
  [ "$(id -u)" = 0 ] || home=$(cd -P -- "${HOME:-/}" 2>/dev/null && pwd -P)
  printf '%s\n' "$exposed" | while read -r _ _ fault mode user group path; do
    case ${2:-}:$fault in create:create) continue ;; esac
    case $home in "${path%/}/"?*) continue ;; esac
    case $fault in
    owner) why="$path belongs to $user" ;;
    link) why="the link $path belongs to $user" ;;
    group) why="the group $group can write to $path" ;;
    create) why="it is missing, and others can create it in $path" ;;
    *) why="every user can write to $path" ;;
    esac
    echo "other users can change $1: $why (owner $user, mode $mode); remove that permission (chmod go-w), or set another directory in the inventory" >&2
    exit 1
  done || exit
}
