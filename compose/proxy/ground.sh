#!/bin/sh
# Open directories to uid 10001, the user of all other services: ground.sh DIRECTORY...
# This runs as root without any capability, so it can change what root owns and nothing else.
set -eu
for place in "$@"; do
  owner=$(stat -c %u "$place")
  others=$(stat -c %A "$place" | cut -c9)
  [ "$owner" = 10001 ] || [ "$others" = w ] || chmod 1777 "$place" 2>/dev/null || {
    # A mapped directory of keys may be read-only: the proxy says what it cannot read.
    [ -e "$place/api-keys" ] || {
      echo "error: $place belongs to uid $owner and is closed to uid 10001 (on the host: chown 10001:10001 it)" >&2
      exit 64
    }
  }
done
