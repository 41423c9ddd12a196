exec sudo -n env "HVDCTL_ADDRESS=$a" "$@"
