# sh -s ROOT MODEL_DIR [write], manifest in $MANIFEST: KEY=VALUE lines.  With "write" a model that was hashed is marked so.
root=$1 model=$2
place=$root
while [ ! -d "$place" ]; do place=$(dirname "$place"); done
echo "free_kb=$(df -P -k "$place" | awk 'NR==2 {print $4}')"
echo "used_kb=$(du -sk "$model" 2>/dev/null | awk '{print $1} END {if (!NR) print 0}')"
echo "type=$(df -P -T "$place" | awk 'NR==2 {print $2}')"
[ -n "$MANIFEST" ] && cd "$model" 2>/dev/null || { [ -n "$MANIFEST" ] && echo "missing=$(echo "$MANIFEST" | awk 'NF {print $2}' | paste -s -d, -)"; exit 0; }
echo "missing=$(echo "$MANIFEST" | awk 'NF {print $2}' | while read -r name; do [ -f "$name" ] || echo "$name"; done | paste -s -d, -)"
# A model is hashed once: sizes and times of its files stand in the mark, with the manifest.
mark=$( (echo "$MANIFEST"; echo "$MANIFEST" | awk 'NF {print $2}' | sort | xargs -r stat -c '%n %s %Y' 2>/dev/null) | sha256sum | cut -d' ' -f1)
if [ "$3" = write ]; then
  wrong=$(echo "$MANIFEST" | grep . | sha256sum --check 2>/dev/null | sed -n 's/: FAILED.*//p' | paste -s -d, -)
  echo "wrong=$wrong"
  [ -n "$wrong" ] || echo "$mark" >.k25stack-verified
fi
[ "$(cat .k25stack-verified 2>/dev/null)" = "$mark" ] && echo verified=yes
exit 0
