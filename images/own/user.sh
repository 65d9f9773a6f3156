#!/bin/sh
# user.sh [NAME]: the user 10001:10001 of every image, the places that compose mounts, and our programs on the PATH.
# Written by hand since useradd notes today's date.
set -eu
name=${1:-k25stack}
echo "$name:x:10001:" >>/etc/group
echo "$name:x:10001:10001::/tmp:/usr/sbin/nologin" >>/etc/passwd
mkdir -p /models /cache /runs /etc/k25stack/job /run/lock/k25stack
chown 10001:10001 /cache /runs
if [ -d /opt/k25stack ]; then
  for program in k25stack k25stack-watch; do
    ln -s "/opt/k25stack/package/bin/$program" "/usr/local/bin/$program"
  done
fi
