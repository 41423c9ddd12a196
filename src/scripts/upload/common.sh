# Prepended to the scripts in upload and to fetch/list.sh; `busy` and `merge` need node/marked.sh before it.
# Arguments: projects_dir, name, cluster, and those of the script that follows. Standard input carries the project's files, so these
# scripts are passed as an argument to sh.
#
# The state of a project NAME is next to it, in .NAME@CLUSTER (no name contains an `@` or a `+`): `shipped` is the manifest of
# the uploaded files ("KIND MODE HASH NAME", NUL, by name), `stat` their states when the upload was proven, `origin` where they came
# from, `compared` what a comparison has found and the push that follows needs.
# NAME+ID is the separate directory of a job that was started while another one used NAME; its manifest is shipped+ID.
#
# Files keep the modes that they have on the operator's machine, where a directory above them may protect them. That is done here by
# NAME, NAME+ID and .NAME@CLUSTER, which only root can enter (NAME and NAME+ID also the login that hvdctl uses, see node/close.sh).
LC_ALL=C
export LC_ALL
umask 077
projects=$1 name=$2 cluster=$3
known=.$name@$cluster compared=$known/compared
(umask 022 && mkdir -p "$projects") && cd "$projects" || exit 1

# prints a record
record() { printf '%s\0' "$*"; }

# prints how many more files and directories fit. A file system that counts none in total has no limit
record_inodes() {
  inodes=$(stat -f -c '%c %d' .) || exit
  [ "${inodes%% *}" = 0 ] || record "inodes ${inodes#* }"
}

# prints the names of the records on standard input, with ./ in front: many programs read standard input for the name `-`
names() { sed -z 's|^[^ ]* [^ ]* [^ ]* |./|'; }

# ends the script from within a pipeline, which would otherwise continue with part of its input; the failed tool has printed the reason
abort() { kill "$$"; }

# prints the state of all entries of a manifest, in its order; a write to a file changes its ctime. Of a directory (its mode begins with
# a 4) it prints only the mode, because the rest changes with what jobs put there. An entry without a state counts as changed
stats() { # MANIFEST DIRECTORY
  names <"$1" | (cd "$2" && xargs -0 -r stat --printf='%f %i %s %.9Y %.9Z %n\0' 2>/dev/null) |
    sed -z 's|^\(4...\) [^ ]* [^ ]* [^ ]* [^ ]* |\1 - - - - |'
}
# tests whether all files are in the state in which they were proven
is_intact() { [ -f "$known/stat" ] && stats "$known/shipped" "$name" | cmp -s - "$known/stat"; }

# sorts records or states by the name, which is the last field, with this number. Of several with one name the first stays
by_name() { # NUMBER
  sort -z -s -u -t ' ' -k "$1"
}

# finds out which files may have changed since they were proven, and makes in `compared`: `changed`, the
# names of these (./NAME); `present`, the manifest, without mode and hash of these
survey() {
  mkdir -p "$compared" && stats "$known/shipped" "$name" >"$compared/now" || exit
  if [ -f "$known/stat" ]; then
    # an earlier hvdctl has sorted the states
    { sort -z "$known/stat" >"$compared/stat" && sort -z "$compared/now" >"$compared/sorted"; } || exit
    comm -z -23 "$compared/stat" "$compared/sorted" >"$compared/odd" || exit
    cut -z -d' ' -f6- "$compared/odd" >"$compared/changed" || exit
    # the record of a changed file follows its name
    { { sed -z 's|^\./|- - - |' "$compared/changed" && cat "$known/shipped"; } || abort; } | sort -z -s -t ' ' -k 4 |
      sed -z '/^- - - /{N;s/^[^\x00]*\x00\(.\) [^ ]* [^ ]* /\1 - - /;}' >"$compared/present" || exit
  else
    # the last push was not proven, and any file may have changed
    names <"$known/shipped" | sort -zu >"$compared/changed" || exit
    sed -z 's/^\(.\) [^ ]* [^ ]* /\1 - - /' "$known/shipped" | by_name 4 >"$compared/present" || exit
  fi
}

# tests whether processes of a job have this directory as their workspace; ends the script if that cannot be known
busy() { # DIRECTORY
  here=$(stat -Lc '%d:%i' "$1") || exit
  files=$(marked '^HVDCTL_JOB=' /proc/[0-9]*/environ) || exit
  # in a container its mount, for a process of the login the link in the place of its worker or launcher (process/main.sh)
  used=$({
    printf '%s\n' "$files" | sed -n 's|/environ$|/root/workspace|p'
    for file in $files; do
      { tr '\0' '\n' <"$file"; } 2>/dev/null | sed -n 's|^HVDCTL_PLACE=\(.*\)|\1/workspace|p'
    done
  } | xargs -r stat -Lc '%d:%i' 2>&1)
  # a process may have ended, not every container has this directory, and a process that has changed its root may have put a link there
  errors=$(printf '%s\n' "$used" | grep -v -e '^[0-9]*:[0-9]*$' -e ': No such file or directory$' -e ': No such process$' \
    -e ': Too many levels of symbolic links$' -e ': File name too long$' -e ': Not a directory$' -e '^$')
  if [ -n "$errors" ]; then
    printf 'cannot find out who uses %s: %s\n' "$1" "$errors" >&2
    exit 1
  fi
  printf '%s\n' "$used" | grep -qx "$here"
}

# removes the names on standard input (NUL); the contents of a directory have to come before it. Directories are removed only if they
# are empty, so that what jobs wrote stays. A directory that a job has replaced by a link leads out of the project, and is left alone.
# Prints what cannot be removed, and fails
remove() { # DIRECTORY
  # shellcheck disable=SC2016 # it is the inner shell's
  errors=$( (cd "$1" && xargs -0 -r sh -c 'r=$(pwd -P) last=
    for f; do
      case $f in */*) d=/${f%/*} ;; *) d= ;; esac
      [ "$d" = "$last" ] || { last=$d at=; [ ! -d ".$d" ] || at=$(cd -P ".$d" && pwd -P); }
      [ -n "$d" ] && [ "$at" != "$r$d" ] || printf "%s\0" "./$f"
    done' sh | xargs -0 -r rm -df) 2>&1 | grep -v ': Directory not empty$' | head -n 3)
  [ -z "$errors" ] || { printf '%s\n' "$errors" >&2 && return 1; }
}

# merges the separate directories of jobs that have ended into the project's. Of two files of a name the newer one stays, as if there
# had been one directory all the time. Having no process does not mean that a job has ended: it may be about to start, or to restart
merge() { # TEST, which succeeds if the job of an id has ended
  for list in "$known"/shipped+*; do
    [ -f "$list" ] || continue
    separate=$name+${list##*+}
    if [ -d "$separate" ]; then
      if ! "$1" "${list##*+}" || busy "$separate"; then continue; fi
      # removes the uploaded files of both manifests first; cut, sort and `remove` print their errors
      errors=$({
        { cut -z -d' ' -f4- "$list" && { [ ! -f "$known/shipped" ] || cut -z -d' ' -f4- "$known/shipped"; }; } |
          sort -zru | remove "$separate"
      } 2>&1)
      [ -n "$errors" ] ||
        errors=$({ chmod --reference="$name" "$separate" && cp -aluf "$separate/." "$name/" && rm -rf "$separate"; } 2>&1)
      if [ -n "$errors" ] || [ -e "$separate" ]; then
        record "kept $separate: $(printf '%s\n' "$errors" | tail -n 1)"
        continue
      fi
    fi
    rm -f "$list" || exit
  done
}
