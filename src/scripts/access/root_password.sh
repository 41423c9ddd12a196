exec sudo -k -S -p '' env "HVDCTL_ADDRESS=$a" "HVDCTL_LOGIN=$HVDCTL_LOGIN" sh -c '
while IFS= read -r line && [ "$line" != "hvdctl: the password ends here" ]; do :; done
line=; exec "$@"' sh "$@"
