#!/bin/sh
# Start the proxy: key and certificate are made at the first start where there are none, then nginx runs.
# API keys: one line "NAME ROLE KEY" each in $SECRETS/api-keys; ROLE is user, or operator, who may read /metrics and /status as well.
set -eu
umask 077
secrets=${SECRETS:-/run/k25stack/secrets}
config=${CONFIG:-/etc/k25stack/proxy/nginx.conf}
work=${WORK:-/tmp}

stop() {
  echo "error: $1" >&2
  exit 64
}

random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }

if [ ! -e "$secrets/api-keys" ]; then
  [ -w "$secrets" ] || stop "$secrets/api-keys: no such file (one line \"NAME user KEY\" each, KEY from: openssl rand -hex 24)"
  printf 'default user k25-%s\noperator operator k25-%s\n' "$(random)" "$(random)" >"$secrets/api-keys.part"
  mv "$secrets/api-keys.part" "$secrets/api-keys"
  echo "made $secrets/api-keys with one key for users and one for operators" >&2
fi
if [ ! -e "$secrets/tls.crt" ] && [ ! -e "$secrets/tls.key" ]; then
  [ -w "$secrets" ] || stop "$secrets/tls.crt: no such file (map tls.crt and tls.key)"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 825 -subj /CN=localhost \
    -addext "subjectAltName=DNS:localhost,DNS:proxy,IP:127.0.0.1" \
    -keyout "$secrets/tls.key" -out "$secrets/tls.crt" 2>/dev/null || stop "no certificate could be made in $secrets"
  echo "made a self-signed certificate in $secrets (map your own tls.crt and tls.key there)" >&2
fi
for name in api-keys tls.crt tls.key; do
  [ -r "$secrets/$name" ] || stop "$secrets/$name: not readable by uid $(id -u) (chown or chmod it)"
done

# Only what is safe inside the two maps gets there; a line that is not says so and stops the start.
awk -v who="$work/who.map" -v operators="$work/operators.map" -v file="$secrets/api-keys" '
  function bad(why) { printf "error: %s:%d: %s\n", file, NR, why >"/dev/stderr"; failed = 1; exit 64 }
  /^[ \t]*(#|$)/ { next }
  NF != 3 { bad("not three words: NAME ROLE KEY") }
  $1 !~ /^[a-z0-9][a-z0-9._-]*$/ { bad("the name has other characters than a-z 0-9 . _ -") }
  $2 != "user" && $2 != "operator" { bad("the role is neither user nor operator") }
  $3 !~ /^[A-Za-z0-9_-]+$/ { bad("the key has other characters than A-Z a-z 0-9 _ -") }
  length($3) < 32 { bad("the key is shorter than 32 characters (make one with: openssl rand -hex 24)") }
  $1 in names { bad("the name stands twice") }
  $3 in keys { bad("the key stands twice") }
  { count++; names[$1]; keys[$3]; printf "\"~^Bearer %s$\" \"%s\";\n", $3, $1 >who }
  $2 == "operator" { printf "\"%s\" 1;\n", $1 >operators }
  END { if (!failed && !count) bad("no key"); printf "" >>who; printf "" >>operators }
' "$secrets/api-keys"

nginx -q -t -c "$config" -g "daemon off;"
exec nginx -c "$config" -g "daemon off;"
