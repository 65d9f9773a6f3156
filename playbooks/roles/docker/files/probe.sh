# Read-only.  KEY=VALUE lines about Docker on this host.
command -v dockerd >/dev/null && echo "engine=$(dockerd --version 2>/dev/null | sed -n 's/.*version \([0-9.]*[0-9]\).*/\1/p')"
echo "active=$(systemctl is-active docker.service 2>/dev/null || true)"
echo "compose=$(docker compose version --short 2>/dev/null | sed -n 's/^v\{0,1\}\([0-9][0-9.]*[0-9]\).*/\1/p')"
echo "running=$(timeout 5 docker ps -q 2>/dev/null | wc -l)"
exit 0
