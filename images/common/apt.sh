#!/bin/sh
# apt.sh PACKAGE...: install Debian packages and leave nothing behind that differs between two builds.
# DEBIAN_SNAPSHOT (20261001T000000Z) takes them from Debian's archive of that moment instead of today's mirror.
set -eu
if [ -n "${DEBIAN_SNAPSHOT:-}" ]; then
  mkdir -p /tmp/sources
  for suite in bookworm bookworm-updates; do
    echo "deb [check-valid-until=no] http://snapshot.debian.org/archive/debian/$DEBIAN_SNAPSHOT $suite main"
  done >/tmp/sources/snapshot.list
  echo "deb [check-valid-until=no] http://snapshot.debian.org/archive/debian-security/$DEBIAN_SNAPSHOT bookworm-security main" \
    >>/tmp/sources/snapshot.list
  set -- -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/tmp/sources "$@"
  apt-get update -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/tmp/sources
else
  apt-get update -qq
fi
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/tmp/apt.log || {
  tail -n 5 /tmp/apt.log >&2
  exit 1
}
rm -rf /tmp/apt.log /tmp/sources /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache
rm -rf /var/lib/dpkg/*-old /var/lib/systemd/catalog /var/log/apt /var/log/*.log /root/.cache
find / -xdev -depth -name __pycache__ -path '*/lib/python3*' -exec rm -rf {} +
