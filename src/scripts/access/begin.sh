printf '\nhvdctl-%s\n' begins-stderr >&2; printf '\nhvdctl-%s\n' begins; exec "$@"
