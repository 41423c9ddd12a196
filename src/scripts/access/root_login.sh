HVDCTL_ADDRESS=$a; export HVDCTL_ADDRESS; exec "$@"
