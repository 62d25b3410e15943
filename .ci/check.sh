#!/usr/bin/env bash
# The checks of `./run check [NAME...]`: one result line each, with its time; the last line is the verdict. Logs stay in
# build-check/logs. A check that cannot run fails the verdict, except where it needs something optional.
set -u -o pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 1
. .ci/lib.sh
TREES=build-check
LOGS=$TREES/logs
WITH_CLANG=(-DCMAKE_C_COMPILER=clang-$CLANG -DCMAKE_CXX_COMPILER=clang++-$CLANG)
CHECKS='format includes limits tables practice environment headers c_header cuda thread_safety build kit checker docs wheel instructions
warnings_clang warnings_gcc asan tsan fuzz soak oracle python_fuzz'
BY_NAME_ONLY='stalls jitter mxnet'  # too long to be among all, or with a download

# What the result line says behind the time. A check sets it.
NOTE=
NOT_RUN=77  # returned by a check that lacks what it needs
OPTIONAL=78 # likewise, where nobody has to have it

need() { packages "$@" || { NOTE='not installed: '$(missing_packages "$@"); return 1; }; }

# --- the sources

check_format() {
  format_ready || return $NOT_RUN
  local differ
  NOTE="$(.ci/sources.sh | wc -l) files"
  differ=$(.ci/sources.sh | xargs -P "$JOBS" -n 8 "$FORMAT" --dry-run 2>&1 |
    sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: .*/\1/p' | sort -u)
  [ -n "$differ" ] || return 0
  say "$differ"
  NOTE="$(say "$differ" | wc -l) of $NOTE differ; ./run format"
  return 1
}

check_includes() {
  python_ready && "$VENV_PYTHON" .ci/includes.py $DRAW
}

check_limits() {
  python_ready && "$VENV_PYTHON" .ci/limits.py | tee "$LOGS/limits.out" || return 1
  NOTE=$(tail -n 1 "$LOGS/limits.out")
}

check_tables() {
  python_ready && "$VENV_PYTHON" .ci/tables.py
}

check_practice() {
  python_ready && "$VENV_PYTHON" .ci/practice.py | tee "$LOGS/practice.out" || return 1
  NOTE=$(tail -n 1 "$LOGS/practice.out")
}

check_environment() {
  local found
  found=$(grep -rnE '\b(secure_)?getenv\b|\benviron\b|putenv|setenv' include src python --include='*.h' --include='*.cc' \
    --include='*.cu' --include='*.py' | grep -vE '^(src/engine/core|python/mxnet)/options\.cc:' |
    grep -vE '^python/engine/torch/adapter\.py:.*"(XDG_CACHE_HOME|CXX)"' |  # where caches and compilers are, as everywhere
    grep -vE '^python/engine/torch/memory\.py:.*\bin CHOSEN\b' |  # the C library's own, for malloc
    grep -vE '^python/engine/torch/surroundings\.py:')  # what a program's step reads of it is watched, as its other settings are
  [ -z "$found" ] || { say "$found"; NOTE='the environment is read outside EngineOptions::FromEnv and the options of the drop-in for MXNet'; return 1; }
  # In options.cc: by the helper above FromEnv and by FromEnv itself.
  [ "$(sed -n '/^EngineOptions EngineOptions::FromEnv/,/^}/!p' src/engine/core/options.cc | grep -c getenv)" -le 1 ]
}

STRICT='-std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Werror -Iinclude -fsyntax-only -x c++ -'
# alone HEADER: compiles as the first thing of a source, and a second time in it.
alone() {
  # shellcheck disable=SC2086  # options are words
  printf '#include <%s>\n#include <%s>\n' "$1" "$1" | g++ $STRICT || { echo "$1 does not compile alone"; return 1; }
}

check_headers() {
  need "$NEEDS_BUILD" "$NEEDS_CLANG" || return $NOT_RUN
  local header library left_out='' found=()
  for header in $(cd include && find engine -name '*.h' | sort); do
    # Bridges to libraries that the engine itself does not need.
    case $header in
      engine/device/cublas.h) library=cublas_v2.h ;;
      engine/device/cudnn.h) library=cudnn.h ;;
      engine/device/cuda_kernels.h) library=cuda_runtime_api.h ;;
      *) library= ;;
    esac
    if [ -n "$library" ] && ! header "$library"; then
      left_out="$left_out, $header left out without $library"
      continue
    fi
    found+=("$header")
  done
  NOTE="${#found[@]} headers, each with g++, all with clang++-$CLANG$left_out"
  # shellcheck disable=SC2086  # options are words
  printf '#include <%s>\n' "${found[@]}" | "clang++-$CLANG" $STRICT || return 1
  export -f alone
  export STRICT
  printf '%s\n' "${found[@]}" | xargs -P "$JOBS" -I{} bash -c 'alone {}'
}

check_c_header() {
  need "$NEEDS_BUILD" "$NEEDS_CLANG" || return $NOT_RUN
  local compiler
  for compiler in gcc clang-$CLANG; do
    echo '#include <engine/c_api.h>' |
      $compiler -std=c11 -Wall -Wextra -Wpedantic -Wstrict-prototypes -Werror -Iinclude -fsyntax-only -x c - || return 1
  done
  NOTE="C11, gcc and clang-$CLANG"
}

check_cuda() {
  local sources
  sources=$(.ci/sources.sh | grep -E '\.cu$|/device/cuda/cuda[_a-z]*\.cc$' | grep -v '^perf/gpu/stf\.cu$')  # that needs CUDASTF
  [ -n "$sources" ] || { NOTE='no CUDA sources yet'; return 0; }
  has nvcc || { NOTE='no nvcc'; return $OPTIONAL; }
  local source
  if [ "${ENGINE_WERROR:-OFF}" = ON ]; then  # then the tree of the tests has them, with warnings as errors
    build_tested || return 1
    for source in $sources; do
      grep -q "\"file\": \"$PWD/$source\"" "$BUILD/compile_commands.json" || { NOTE="$BUILD does not build $source"; return 1; }
    done
  else
    for source in $sources; do  # nvcc gives C++ to the host's compiler
      nvcc -std=c++20 -arch=sm_90 -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror -Iinclude -Isrc/engine -Itests \
        -Iperf -c "$source" -o "$TREES/cuda.o" || return 1
    done
  fi
  NOTE="$(echo "$sources" | wc -l) sources compiled"
  # With the headers of CUDA 12, where CUDA12_INCLUDE names their folders, one a colon: those of the wheels nvidia-cuda-runtime-cu12,
  # nvidia-cuda-nvcc-cu12 and nvidia-cuda-cupti-cu12, unpacked.
  [ -n "${CUDA12_INCLUDE:-}" ] || { NOTE="$NOTE; CUDA 12 not looked at without CUDA12_INCLUDE"; return 0; }
  for source in $(echo "$sources" | grep '\.cc$') src/engine/device/cuda/cupti.cc tests/cuda_model/*.cc; do
    case $source in */nccl* | */cudart_test.cc | */broken_cudart.cc) continue ;; esac
    g++ -std=c++20 -fsyntax-only -Wall -Wextra -Werror -Iinclude -Isrc/engine -Itests -Itests/conformance \
      $(echo "$CUDA12_INCLUDE" | sed 's/[^:]*/-isystem &/g; s/:/ /g') "$source" || return 1
  done
  NOTE="$NOTE, also with CUDA 12's headers"
}

# Clang's thread-safety analysis is on in every Clang build, so the sanitizers' trees are where the sources pass it. This is the other
# half: with the same macros it refuses an unlocked access.
check_thread_safety() {
  need "$NEEDS_BUILD" "$NEEDS_CLANG" || return $NOT_RUN
  local good='int Get() { MutexLock lock(mu); return x; }' bad='int Get() { return x; }' body
  for body in "$good" "$bad"; do
    printf '%s\n' '#include "base/sync.h"' 'using namespace engine::detail;' \
      "struct S { Mutex mu; int x GUARDED_BY(mu) = 0; $body };" 'int Use(S& s) { return s.Get(); }' |
      "clang++-$CLANG" -std=c++20 -Iinclude -Isrc/engine -Wthread-safety -Werror -fsyntax-only -x c++ - 2>/dev/null
    [ $? = "$([ "$body" = "$good" ] && echo 0 || echo 1)" ] || { NOTE='locked and unlocked are not told apart'; return 1; }
  done
  grep -q -- '-Wthread-safety' CMakeLists.txt || { NOTE='CMakeLists.txt does not turn it on'; return 1; }
  NOTE='an unlocked access is refused; the sources pass it in asan and tsan'
}

# --- builds

check_build() { build_tested; }

# configure_tree NAME [CMake options]: build-check/NAME. Several sources at a time, for half of a compiler's work is the standard's headers.
# (In the tree of the tests those of the library stand alone: tests/CMakeLists.txt.)
configure_tree() {
  local name=$1
  shift
  configure "$TREES/$name" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=30 "$@"
}
# tree NAME [CMake options]: builds it, too.
tree() {
  configure_tree "$@" && cmake --build "$TREES/$1" -j "$JOBS" -- -k 0  # all errors, not only the first
}

# Where warnings are errors in the tree that ./run test builds (ENGINE_WERROR=ON), only the benchmarks are left to build.
check_warnings_gcc() {
  need "$NEEDS_BUILD" && python_ready || return $NOT_RUN
  if [ "${ENGINE_WERROR:-OFF}" = ON ]; then
    build_tested && cmake "$BUILD" -DENGINE_BUILD_PERF=ON && cmake --build "$BUILD" -j "$JOBS" -- -k 0
  else
    tree gcc -DENGINE_BUILD_TESTS=OFF -DENGINE_WERROR=ON -DENGINE_BUILD_PYTHON=ON -DPython_EXECUTABLE="$PWD/$VENV_PYTHON" \
      -DENGINE_BUILD_PERF=ON
  fi
}

# Compiles what the sanitizers' trees do not have: those are built by the same compiler with the same warnings, the library too. (The
# benchmarks are built by GCC alone.)
check_warnings_clang() {
  need "$NEEDS_BUILD" "$NEEDS_TESTS" "$NEEDS_CHECK" && python_ready || return $NOT_RUN
  local objects
  configure_tree clang -DENGINE_BUILD_TESTS=ON "-DENGINE_TEST_FOLDERS=conformance;gpu_counters;checker" \
    "${WITH_CLANG[@]}" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-fsyntax-only -DENGINE_WERROR=ON \
    -DENGINE_BUILD_PYTHON=ON -DPython_EXECUTABLE="$PWD/$VENV_PYTHON" || return 1
  objects=$(ninja -C "$TREES/clang" -t targets all | sed -n 's/\(.*\.o\): .*/\1/p' | grep -vE '^src/|\.cu\.o$')
  # shellcheck disable=SC2086  # names are words
  ninja -C "$TREES/clang" -j "$JOBS" -k 0 $objects || return 1
  NOTE="$(wc -w <<<"$objects") objects; those of the library in the sanitizers' trees"
}

# sanitizer_tree NAME SANITIZER FLAGS FOLDERS [CMake options]: builds what runs under a sanitizer, and the tests in FOLDERS besides. Not
# optimized: the compiler would take three times as long, and the tests little less.
sanitizer_tree() {
  local name=$1 sanitizer=$2 flags=$3 folders=$4
  shift 4
  tree "$name" -DENGINE_BUILD_TESTS=ON "${WITH_CLANG[@]}" -DENGINE_WERROR=ON -DENGINE_SANITIZE="$sanitizer" \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo '-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -gline-tables-only -DNDEBUG' \
    -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_C_FLAGS="$flags" \
    -DCMAKE_EXE_LINKER_FLAGS=-fsanitize-link-c++-runtime -DCMAKE_C_STANDARD_LIBRARIES=-lstdc++ \
    "-DENGINE_TEST_FOLDERS=engine;device;plan;bulk;costmodel;stage;stress;oracle;c_api;mxnet${folders:+;$folders}" "$@"  # the linker options: for programs in C
}
# With the engine's own assertions and the fuzzers, too: so that all checks together need no trees for them alone.
asan_tree() { sanitizer_tree asan address,undefined -fno-sanitize-recover=undefined fuzz -DENGINE_ASSERTS=ON; }
tsan_tree() { sanitizer_tree tsan thread '' ''; }

# sanitized NAME: the fast tests under a sanitizer.
sanitized() {
  local name=$1 fixed=()
  need "$NEEDS_BUILD" "$NEEDS_TESTS" "$NEEDS_CHECK" || return $NOT_RUN
  "${name}_tree" || return 1
  # The sanitizers' shadow memory does not fit every random address layout.
  setarch -R true 2>/dev/null && fixed=(setarch -R)
  local log=$LOGS/$name.ctest
  "${fixed[@]}" ctest --test-dir "$TREES/$name" --output-on-failure --no-tests=error -LE 'slow|soak|oracle' -j $((JOBS * 2)) | tee "$log"
  local status=${PIPESTATUS[0]}
  local passed
  passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$TREES/$name/Testing/Temporary/LastTest.log" | awk '{ n += $1 } END { print n + 0 }')
  NOTE="$passed of GoogleTest's; processes: $(grep 'tests passed' "$log")"
  [ "$passed" != 0 ] || return 1
  return "$status"
}

SYMBOLS=external_symbolizer_path=/usr/lib/llvm-$CLANG/bin/llvm-symbolizer
ASAN_SAYS=$SYMBOLS:detect_stack_use_after_return=1:strict_init_order=1
UBSAN_SAYS=$SYMBOLS:print_stacktrace=1
TSAN_SAYS=$SYMBOLS:second_deadlock_stack=1
check_asan() { ASAN_OPTIONS=$ASAN_SAYS UBSAN_OPTIONS=$UBSAN_SAYS sanitized asan; }
check_tsan() { TSAN_OPTIONS=$TSAN_SAYS sanitized tsan; }

# Random programs through the Python package (tests/python/oracle): by name a hundred thousand, among all checks a part.
check_python_fuzz() {
  need "$NEEDS_BUILD" && python_ready || return $NOT_RUN
  build_tested || return 1
  with_engine "$VENV_PYTHON" tests/python/oracle/run.py --programs "$PYTHON_FUZZ_PROGRAMS" | tee "$LOGS/python_fuzz.out"
  local status=${PIPESTATUS[0]}
  NOTE=$(tail -n 1 "$LOGS/python_fuzz.out")
  return "$status"
}

# Random programs, in the trees of the tests and of the sanitizers; by name ten minutes in each, in one with the engine's own
# assertions alone and in one with jitter; among all checks less than one.
check_oracle() {
  need "$NEEDS_BUILD" "$NEEDS_TESTS" "$NEEDS_CHECK" || return $NOT_RUN
  local seconds=$ORACLE_SECONDS seed=$ORACLE_SEED fixed=() trees=() name status=0
  setarch -R true 2>/dev/null && fixed=(setarch -R)
  local run_in=("$BUILD" "$TREES/asan" "$TREES/tsan")
  build_tested && asan_tree && tsan_tree || return 1
  [ "$BY_NAME" != oracle ] || { oracle_tree asserts && oracle_tree jitter && run_in+=("$TREES/asserts" "$TREES/jitter") || return 1; }
  # Side by side: a program waits for most of its time.
  local running=()
  for name in "${run_in[@]}"; do
    ASAN_OPTIONS=$ASAN_SAYS UBSAN_OPTIONS=$UBSAN_SAYS TSAN_OPTIONS=$TSAN_SAYS:halt_on_error=1 \
      "${fixed[@]}" "$name/tests/oracle/oracle" --seconds "$seconds" --seed "$seed" >"$LOGS/oracle.$(basename "$name").out" 2>&1 &
    running+=($!)
  done
  for name in "${run_in[@]}"; do
    wait "${running[${#trees[@]}]}" || status=1
    say "-- in $name"
    cat "$LOGS/oracle.$(basename "$name").out"
    trees+=("$(basename "$name") $(sed -n '$s/^oracle: \([0-9]*\) seeds.*; \([0-9]*\) bad.*/\1 seeds \2 bad/p' "$LOGS/oracle.$(basename "$name").out")")
  done
  NOTE="from seed $seed: $(printf '%s, ' "${trees[@]}" | sed 's/, $//')"
  return $status
}

# fuzz_one NAME SECONDS: one target from its corpus; what it finds stays in the tree.
fuzz_one() {
  local tree=build-check/asan
  local found=build-check/fuzz/found/$1 log=build-check/fuzz/$1.log fixed=()
  mkdir -p "$found"
  setarch -R true 2>/dev/null && fixed=(setarch -R)  # as for the other sanitizers
  "${fixed[@]}" "$tree/tests/fuzz/fuzz_$1" -max_total_time="$2" -max_len=2048 -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
    -artifact_prefix="$found/" "$found" "tests/fuzz/corpus/$1" >"$log" 2>&1 ||
    { echo "fuzz_$1 FAILED: $log, inputs in $found"; grep -E 'ERROR:|runtime error|fuzz:' "$log"; return 1; }
}

check_fuzz() {
  need "$NEEDS_BUILD" "$NEEDS_TESTS" "$NEEDS_CHECK" || return $NOT_RUN
  asan_tree || return 1
  local seconds=7
  [ -z "$BY_NAME" ] || seconds=60
  export -f fuzz_one
  ls tests/fuzz/corpus | ASAN_OPTIONS=$SYMBOLS UBSAN_OPTIONS=$SYMBOLS:print_stacktrace=1 \
    xargs -P "$JOBS" -I{} bash -c "fuzz_one {} $seconds" || return 1
  NOTE="$(ls tests/fuzz/corpus | wc -l) targets for $seconds s each, $(sed -n 's/^stat::number_of_executed_units: *//p' \
    "$TREES"/fuzz/*.log | awk '{ all += $1 } END { print all }') inputs"
}

# --- in the tree that ./run test builds

# ctest_part PATTERN...: part of the C++ tests.
ctest_part() {
  local log=$LOGS/part.ctest
  ctest --test-dir "$BUILD" --output-on-failure --no-tests=error "$@" | tee "$log"
  local status=${PIPESTATUS[0]}
  NOTE=$(grep -E 'tests passed|^No tests' "$log")
  return "$status"
}

# The kit of this tree with the models in place of CUDA and NCCL: every part runs, and is not run again. (Faults: tests/kit.)
check_kit() {
  has nvcc || { NOTE='no nvcc'; return $OPTIONAL; }
  local kit=$TREES/kit-on-model note
  build_tested && rm -rf "$kit" && kit_from "$BUILD" "$kit" && cp "$BUILD"/cuda_model/lib{cudart.so.*,nccl.so.2} "$kit/lib/" || return 1
  note=$NOTE
  "$kit/go" --quick --rounds 1 && "$kit/go" --quick --rounds 1 | tee "$LOGS/kit.out" || return 1
  NOTE="$note; $(sed -n 's/^kit: \(.*\);.*/\1/p' "$LOGS/kit.out")"
  ! grep -qE '^kit: .*(failed|cut|[1-9][0-9]* not begun)' "$LOGS/kit.out" && ! grep -q '^   passed' "$LOGS/kit.out" &&
    python3 perf/gpu/suite.py --compare "$kit/results/results.json" "$kit/results/results.json"
}

# A wheel that is compiled without optimization: what is looked at is how it is put together. ./run wheel makes the real one.
check_wheel() {
  need "$NEEDS_WHEEL" "$NEEDS_PYTHON" || return $NOT_RUN
  local python status
  python=$(find_python) && mkdir -p "$WHEEL" || return 1
  DIST=$WHEEL/dist
  sdist_made "$python" && wheel_made "$python" '-O0 -DNDEBUG' || return 1
  wheel_tested "$python" wheel values order | tee "$LOGS/wheel.out"
  status=${PIPESTATUS[0]}
  NOTE="$(basename "$MADE"): $(tail -n 1 "$LOGS/wheel.out")"
  return "$status"
}

# The C++ tests while threads are stopped at random moments (tests/stalls): whoever fails only then asks what the machine decides.
# Left out are those that make processes of their own, and random programs, which take too long.
check_stalls() {
  need "$NEEDS_BUILD" && build_tested || return 1
  gcc -std=c11 -Wall -Wextra -Werror -O2 -shared -fPIC -o "$TREES/libstalls.so" tests/stalls/stalls.c -ldl -lpthread || return 1
  local round
  for round in "2 60" "4 30" "10 100" "30 400"; do
    STALLS_ONLY=/tests/ STALLS_EVERY=${round% *} STALLS_LONGEST=${round#* } LD_PRELOAD=$PWD/$TREES/libstalls.so \
      ctest_part -j $((JOBS * 3)) --schedule-random -LE soak -E '^(kit|install|oracle|mutants|checker|stress)|^conformance_on_model|Random|Serializable' || return 1
  done
}

# The C++ tests while the engine's threads sleep now and then where others may overtake them (src/engine/base/jitter.h).
check_jitter() {
  need "$NEEDS_BUILD" "$NEEDS_TESTS" || return $NOT_RUN
  jitter_tree && cmake --build "$TREES/jitter" -j "$JOBS" || return 1
  local log=$LOGS/jitter.ctest
  ctest --test-dir "$TREES/jitter" --output-on-failure --no-tests=error -LE 'soak|oracle' -j $((JOBS * 4)) | tee "$log"
  local status=${PIPESTATUS[0]}
  NOTE=$(grep 'tests passed' "$log")
  return "$status"
}

# Our tests of the drop-in, with MXNet's wheel, which is downloaded. Its own tests: ./run mxnet-tests.
check_mxnet() {
  need "$NEEDS_BUILD" "$NEEDS_TESTS" && mxnet_ready || return $NOT_RUN
  mxnet_built mxnet_drop_in_test mxnet_counters_test || return 1
  mxnet_tests_of_ours | tee "$LOGS/mxnet.out"
  local status=${PIPESTATUS[0]}
  NOTE=$(grep -E '^(=+ )?[0-9]+ (passed|failed)' "$LOGS/mxnet.out" | tail -n 1)
  return "$status"
}

check_checker() {
  [ -z "${CHECKER_PASSED:-}" ] || { NOTE='passed among the tests'; return 0; }  # .ci/run has just run those
  build_tested && ctest_part -R '^checker\.' -j "$JOBS"
}
check_soak() { build_tested && ctest_part -L soak -j "$JOBS"; }

check_docs() {
  build_tested && with_engine "$VENV_PYTHON" .ci/docs.py --build "$BUILD" | tee "$LOGS/docs.out" || return 1
  NOTE=$(tail -n 1 "$LOGS/docs.out")
}

check_instructions() {
  need "$NEEDS_BUILD" 'valgrind has valgrind' || return $NOT_RUN
  build_tested && .ci/instructions.sh | tee "$LOGS/instructions.out" || return 1
  NOTE=$(tail -n 1 "$LOGS/instructions.out")
}

# --- running them

[ "${1:-}" != --list ] || { printf '%s\n' $CHECKS; exit 0; }
DRAW=
[ "$*" != 'includes --draw' ] || { DRAW=--draw; set -- includes; }
for name in "$@"; do
  [[ " $(echo $CHECKS $BY_NAME_ONLY) " == *" $name "* ]] || die "no check '$name'; there are: $(echo $CHECKS $BY_NAME_ONLY)"
done

# What of a failed check's log is worth showing: the compiler's errors, or else the end.
excerpt() {
  grep -E -A 3 '^(WRONG|CRASH|HANG|HUNG|ENDLESS|ENDED|LEAK)\b' "$1" | cut -c 1-1000 | head -n 20 | sed 's/^/    /'  # the oracle's
  { grep -E '(fatal|runtime)? error: |(ERROR|WARNING): [A-Z][a-z]+Sanitizer|FAILED\b|\*\*\*Failed' "$1" | head -n 20 | grep . || tail -n 20 "$1"; } | sed 's/^/    /'
}

mkdir -p "$LOGS"
BY_NAME=$*
# Among all checks the same programs every time, so that a change is judged by itself; by name, others each time.
ORACLE_SECONDS=20 ORACLE_SEED=1
[ "$*" != oracle ] || ORACLE_SECONDS=600 ORACLE_SEED=$RANDOM$RANDOM
PYTHON_FUZZ_PROGRAMS=${PYTHON_FUZZ_PROGRAMS:-$([ "$*" = python_fuzz ] && echo 100000 || echo 3500)}
failed=() count=0
for name in ${*:-$CHECKS}; do
  NOTE=
  begin=$SECONDS
  count=$((count + 1))
  "check_$name" >"$LOGS/$name.log" 2>&1
  status=$?
  case $status in
    0) word=ok ;;
    "$NOT_RUN") word='NOT RUN' ;;
    "$OPTIONAL") word='left out' ;;
    *) word=FAILED ;;
  esac
  printf '%-9s %-15s %4d s  %s\n' "$word" "$name" $((SECONDS - begin)) "$NOTE"
  case $word in
    FAILED) failed+=("$name"); excerpt "$LOGS/$name.log" ;;
    'NOT RUN') failed+=("$name (not run)"); excerpt "$LOGS/$name.log" ;;
  esac
done
if [ ${#failed[@]} = 0 ]; then
  say "run check: PASSED in $SECONDS s: $count checks"
else
  say "run check: FAILED in $SECONDS s: $(printf '%s, ' "${failed[@]}" | sed 's/, $//') of $count checks; logs in $LOGS"
  exit 1
fi
