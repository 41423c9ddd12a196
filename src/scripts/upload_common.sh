# In front of upload_compare.sh, upload_merge.sh and fetch_list.sh. Arguments: projects_dir, name, cluster, … ; standard input is the
# project's, so these scripts come as an argument. What hvdctl knows of a project NAME lies beside it, in .NAME@CLUSTER
# (no name can have an `@` or a `+`): `shipped` is the manifest of the files that it uploaded ("KIND MODE HASH NAME", NUL), `stat`
# what they were like when that was proven, `origin` where they came from. NAME+ID is the directory of a job that was started
# while another one used NAME; its manifest is shipped+ID.
LC_ALL=C
export LC_ALL
umask 022
projects=$1 name=$2 cluster=$3
known=.$name@$cluster
mkdir -p "$projects" && cd "$projects" || exit 1

say() { printf '%s\0' "$*"; }

# the names of a manifest's records; `-` would be standard input to many a program
names() { sed -z 's|^[^ ]* [^ ]* [^ ]* |./|'; }

# what stat has to say of what a manifest names: whoever writes a file changes its ctime. Of a directory (its mode begins with a 4)
# only the mode, the rest changes with what jobs put there
stats() { # MANIFEST DIRECTORY
  names <"$1" | (cd "$2" && xargs -0 -r stat --printf='%f %i %s %.9Y %.9Z %n\0' 2>/dev/null) |
    sed -z 's|^\(4...\) [^ ]* [^ ]* [^ ]* [^ ]* |\1 - - - - |'
}

# whether processes of a job have this directory as their workspace
busy() { # DIRECTORY
  here=$(stat -Lc '%d:%i' "$1")
  grep -lz '^HVDCTL_JOB=' /proc/[0-9]*/environ 2>/dev/null | sed 's|/environ$|/root/workspace|' |
    xargs -r stat -Lc '%d:%i' 2>/dev/null | grep -qx "$here"
}

# removes the names on standard input (NUL), what is in a directory before the directory, and only empty ones: what jobs
# wrote stays. A directory that a job has replaced by a link leads out of the project, and is left alone
remove() { # DIRECTORY
  # shellcheck disable=SC2016 # it is the inner shell's
  (cd "$1" && xargs -0 -r sh -c 'r=$(pwd -P) last=
    for f; do
      case $f in */*) d=/${f%/*} ;; *) d= ;; esac
      [ "$d" = "$last" ] || { last=$d at=$(cd -P ".$d" 2>/dev/null && pwd -P); }
      [ -n "$d" ] && [ "$at" != "$r$d" ] || printf "%s\0" "./$f"
    done' sh | xargs -0 -r rm -df 2>/dev/null) || :
}

# brings what jobs wrote in directories of their own into the project's, once they have ended; of two files of a name the newer
# one stays, as if there had been one directory all the time. A running job may have no process just now: between two attempts, or
# before its first
merge() { # TEST: whether the job of an id has ended
  for list in "$known"/shipped+*; do
    [ -f "$list" ] || continue
    side=$name+${list##*+}
    if [ -d "$side" ]; then
      if ! "$1" "${list##*+}" || busy "$side"; then continue; fi
      cat "$list" "$known/shipped" 2>/dev/null | cut -z -d' ' -f4- | sort -zru | remove "$side"
      chmod --reference="$name" "$side"
      if said=$(cp -aluf "$side/." "$name/" 2>&1); then
        rm -rf "$side"
      else
        say "kept $side: $(printf '%s\n' "$said" | tail -n 1)"
        continue
      fi
    fi
    rm -f "$list"
  done
}
