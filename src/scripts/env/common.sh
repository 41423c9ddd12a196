# Prepended to the scripts in env, after node/permissions.sh. Variables: state_dir (hvdctl's directory on the node).
#
# The virtualenv NAME is the link env/NAME to a directory in env/.builds, which keeps its path: a virtualenv has its own
# path in its files. The link gets its place when all is installed, so one that was cut off has none, and a job that
# runs from an earlier one keeps its files. In the directory, `hvdctl.env` says what was installed, in lines
# "KEY VALUE", and `hvdctl.packages` has a line "NAME VERSION" for each package. env/.wheels/NAME has wheels of the
# operator's machine, each in a directory with the name of its SHA-256; env/.cache is that of pip and uv.
envs=$state_dir/env
builds=$envs/.builds

# before the lease has created it, another user may have done so, with a virtualenv in it
case $(stat -c '%u %A' -- "$state_dir" 2>/dev/null) in
'' | "$(id -u) d"????-??-*) ;;
*)
  echo "$state_dir is a link or belongs to another user: remove it, or set cluster.state_dir to another directory" >&2
  exit 1
  ;;
esac
refuse_exposed "$state_dir" create

fail() { # MESSAGE [EXIT-CODE]
  printf '%s\n' "$1" >&2
  exit "${2:-1}"
}

# makes the directories, which only the login may enter
make_place() {
  (umask 077 && mkdir -p "$builds") || exit
  for place in "$state_dir" "$envs" "$builds"; do
    { [ ! -h "$place" ] && [ -d "$place" ] && [ -O "$place" ]; } ||
      fail "$place is a link or belongs to another user: remove it, or set cluster.state_dir to another directory"
    chmod 700 "$place" || exit
  done
}

# sets `build` to the directory of a virtualenv that is complete, or to nothing
find_build() { # NAME
  build=$(readlink "$envs/$1" 2>/dev/null)
  case $build in
  .builds/*/* | .builds/.*) build= ;;
  .builds/?*) build=$envs/$build ;;
  *) build= ;;
  esac
  [ -z "$build" ] || [ -f "$build/hvdctl.env" ] || build=
}

# removes a virtualenv; one that is only half removed is not complete
remove_build() { rm -f "$1/hvdctl.env" && rm -rf "$1"; } # DIRECTORY

# tests whether the place of a virtualenv has something that hvdctl has not put there
is_foreign() { # NAME
  case $(readlink "$envs/$1" 2>/dev/null) in
  .builds/*) return 1 ;;
  esac
  [ -h "$envs/$1" ] || [ -e "$envs/$1" ]
}

# prints a value of `build`
value() { sed -n "s/^$1 //p" "$build/hvdctl.env"; } # KEY

# prints the version of the Python of `build`; fails if it does not run, not even with what the lines of `activate` set
build_version() { run_version || (activate 2>/dev/null && run_version); }
run_version() {
  "$build/bin/python" -I -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null </dev/null
}
