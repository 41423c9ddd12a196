# The beginning of process/main.sh and of process/check.sh. Remembers the virtualenv or conda environment that is active, by its python3 as
# the first one in PATH: the start-up files of a login shell may set PATH anew, or activate another one (process/activate.sh).
HVDCTL_ACTIVE=
case $(command -v python3) in
"${VIRTUAL_ENV:-/}/bin/python3") HVDCTL_ACTIVE=VIRTUAL_ENV=$VIRTUAL_ENV ;;
"${CONDA_PREFIX:-/}/bin/python3") HVDCTL_ACTIVE=CONDA_PREFIX=$CONDA_PREFIX ;;
esac
export HVDCTL_ACTIVE
