#!/bin/sh
# What `make env` needs from the system: a Python with venv.  Installed when root on Debian or Ubuntu, else named.
set -eu
python=${PYTHON:-python3}
venv=${VENV:-.venv}
missing=
command -v "$python" >/dev/null 2>&1 || missing="python3 "
if [ -n "$missing" ] || ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
  missing="${missing}python3-venv "
fi
[ -e /etc/ssl/certs/ca-certificates.crt ] || [ -n "${SSL_CERT_FILE:-}" ] || missing="${missing}ca-certificates "
[ -n "$missing" ] || exit 0
line="apt-get install -y --no-install-recommends ${missing% }"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "installing system packages: ${missing% }"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $line -qq >"${TMPDIR:-/tmp}/k25stack-apt.log" 2>&1 || {
    tail -n 3 "${TMPDIR:-/tmp}/k25stack-apt.log" >&2
    echo "error: could not install: ${missing% } (run: $line)" >&2
    exit 3
  }
  rm -rf "$venv"
else
  echo "error: missing on this system: ${missing% } (run: sudo $line)" >&2
  exit 3
fi
