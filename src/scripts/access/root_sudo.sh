exec sudo -n env "HVDCTL_ADDRESS=$a" "HVDCTL_LOGIN=$HVDCTL_LOGIN" "$@"
