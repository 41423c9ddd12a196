printf '\nhvdctl-%s\n' begins; printf '\nhvdctl-%s\n' begins >&2
