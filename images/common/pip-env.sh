# Sourced before pip runs in a build.  What the machine needs to reach its package index comes in as build secrets and
# build contexts, all of them optional: a CA bundle, a pip configuration, a directory of wheels.  None lands in a layer.
if [ -s /run/secrets/pip ]; then
  export PIP_CONFIG_FILE=/run/secrets/pip
fi
if [ -s /run/secrets/ca ]; then
  export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca # over what the pip configuration says: its path is the host's
fi
if [ -n "$(ls -A /wheels 2>/dev/null)" ]; then
  export PIP_FIND_LINKS=/wheels
fi
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_COMPILE=no PIP_DEFAULT_TIMEOUT=180
export PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
