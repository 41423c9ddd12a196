# Install WireGuard's tools, wireguard-go, iproute2, nftables and Python, which the containers of the encrypted network need
if command -v wg && command -v wireguard-go && command -v ip && command -v nft && command -v python3; then exit 0; fi
if ! command -v apt-get; then
  echo "this image has no wg, wireguard-go, ip, nft and python3, and no apt-get that could install them: name another image" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update && apt-get install -y --no-install-recommends wireguard-tools wireguard-go iproute2 nftables python3 || exit
rm -rf /var/lib/apt/lists/*
