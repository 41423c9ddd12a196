printf '\nhvdctl-%s\n' begins-stderr >&2; printf '\nhvdctl-%s\n' begins; exec env -u TMOUT -u SHELLOPTS -u BASHOPTS -u BASH_ENV -u ENV -u CDPATH -u GREP_OPTIONS -u TAR_OPTIONS -u POSIXLY_CORRECT "$@"
