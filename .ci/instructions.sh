#!/usr/bin/env bash
# Instructions per op (push, run, complete; one thread, naive policy), counted by callgrind, against the record in
# perf/instructions.json. Fails where a case has grown by more than 5 %. Counts are exact for one compiler and library
# version, so they are recorded by compiler.
#   .ci/instructions.sh            compare        .ci/instructions.sh --update     record
#   .ci/instructions.sh --alone    compare, where no second thread has pushed
set -eu -o pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
. .ci/lib.sh
RECORD=perf/instructions.json
OUT=build-check/instructions
FEW=2000 MANY=12000
ALONE=
[ "${1:-}" != --alone ] || ALONE=alone

# Of fixed flags: those of the tests' tree, unless a developer has given that others; then in one of its own.
packages "$NEEDS_BUILD" 'valgrind has valgrind'
mkdir -p "$OUT"
cached() { sed -n "s/^$1:[A-Z]*=//p" "$BUILD/CMakeCache.txt"; }
same_flags() {
  [ -e "$BUILD/CMakeCache.txt" ] &&
    [ "$("$(cached CMAKE_CXX_COMPILER)" -dumpfullversion 2>&1)" = "$(g++ -dumpfullversion)" ] &&
    [ "$(cached CMAKE_BUILD_TYPE) $(cached CMAKE_CXX_FLAGS_RELWITHDEBINFO)" = "RelWithDebInfo $OPTIMIZED" ] &&
    [ -z "$(cached CMAKE_CXX_FLAGS)$(cached ENGINE_SANITIZE)" ]
}
TREE=$BUILD
same_flags || {
  TREE=$OUT
  configure "$TREE" -DENGINE_BUILD_TESTS=OFF -DENGINE_BUILD_PYTHON=OFF -DENGINE_BUILD_PERF=OFF -DCMAKE_CXX_COMPILER=g++
}
cmake --build "$TREE" -j "$JOBS" --target engine >"$OUT/build.log" || { cat "$OUT/build.log"; exit 1; }
g++ -std=c++20 -O2 -DNDEBUG -Iinclude .ci/instructions.cc -o "$OUT/instructions" -L"$TREE/src/engine" \
  -Wl,-rpath,"$PWD/$TREE/src/engine" -lengine -pthread

count() { # count CASE N: instructions of the whole run
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$OUT/instructions" "$1" "$2" $ALONE 2>&1 |
    sed -n 's/^==[0-9]*== Collected : \([0-9]*\).*/\1/p'
}

counts=
for name in 0 1w 1w1r 1w2r operator; do
  few=$(count $name $FEW)
  many=$(count $name $MANY)
  [ -n "$few" ] && [ -n "$many" ] || die "callgrind counted nothing for case $name"
  counts="$counts $name=$(((many - few) * 10 / (MANY - FEW)))" # in tenths
done

python3 - "$RECORD" "g++ $(g++ -dumpfullversion) $(uname -m)" "${1:-}" $counts <<'PY'
import json, pathlib, sys

path, compiler, option = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
now = {name: int(tenths) / 10 for name, tenths in (c.split("=") for c in sys.argv[4:])}
record = json.loads(path.read_text()) if path.exists() else {}
if option == "--update":
    record[compiler] = now
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
before = record.get(compiler)
if before is None:
    print(*(f"{name}: {count}" for name, count in now.items()), sep="\n")
    print(f"no record for {compiler}: .ci/instructions.sh --update makes one")
    sys.exit(1)
grown = 0
for name, count in now.items():
    change = 100 * (count / before[name] - 1)
    grown += change > 5
    print(f"{name:5} {count:7.1f} instructions an op, recorded {before[name]:7.1f}: {change:+.1f} %{' TOO MANY' if change > 5 else ''}")
print("instructions an op: " + ", ".join(f"{name} {count:.0f}" for name, count in now.items()))
sys.exit(1 if grown else 0)
PY
