#!/bin/sh
# Puts MXNet 1.9.1's libraries where the mxnet runner looks for them (perf/.cache, which git ignores).
# Needs pip and about 230 MB; nothing is installed. At run time they need libgomp1 and libquadmath0.
set -eu
cache=$(cd "$(dirname "$0")/.." && pwd)/.cache
mkdir -p "$cache"
if [ ! -e "$cache/mxnet/libmxnet.so" ]; then
  python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$cache" mxnet==1.9.1
  python3 - "$cache" <<'PY'
import glob, sys, zipfile
cache = sys.argv[1]
with zipfile.ZipFile(glob.glob(cache + "/mxnet-1.9.1-*.whl")[0]) as wheel:
    wheel.extractall(cache, [n for n in wheel.namelist() if n.startswith("mxnet/lib") and ".so" in n])
PY
  rm -f "$cache"/mxnet-1.9.1-*.whl
fi
echo "$cache/mxnet/libmxnet.so"
