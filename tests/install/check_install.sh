#!/bin/sh
# One way of using the package, from an installed tree that was moved since: find_package, pkg_config or headers; or
# from the sources: add_subdirectory. Usage: check_install.sh WAY; the rest comes in variables, see CMakeLists.txt.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

install_and_move() {
  "$CMAKE" --install "$BUILD_DIR" --prefix "$work/first" >/dev/null
  mv "$work/first" "$work/prefix"
  prefix=$work/prefix
  libdir=$prefix/$LIBDIR
}
configure_and_build() { # SOURCE ARGUMENTS...
  source=$1
  shift
  "$CMAKE" -S "$source" -B "$work/build" -G "$GENERATOR" -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" \
    -DCMAKE_BUILD_TYPE=Release "$@"
  "$CMAKE" --build "$work/build" -j 1
}
expect() { # TEXT PROGRAM
  said=$(LD_LIBRARY_PATH=${libdir-}:${LD_LIBRARY_PATH-} "$2")
  echo "$2 says: $said"
  [ "$said" = "$1" ]
}

case $1 in
  find_package)
    install_and_move
    configure_and_build "$here/find_package" -DCMAKE_PREFIX_PATH="$prefix"
    expect "C++ 42" "$work/build/use_cc"
    expect "C 42" "$work/build/use_c"
    [ -n "$(find "$prefix" -name LICENSE)" ] || { echo "the license is not installed" >&2; exit 1; }
    ;;
  find_package_c)
    install_and_move
    configure_and_build "$here/find_package_c" -DCMAKE_PREFIX_PATH="$prefix"
    expect "C 42" "$work/build/use_c"
    ;;
  pkg_config)
    install_and_move
    PKG_CONFIG_PATH=$libdir/pkgconfig:${PKG_CONFIG_PATH-}
    export PKG_CONFIG_PATH
    flags=$(pkg-config --cflags --libs engine)
    echo "flags: $flags, version $(pkg-config --modversion engine)"
    # shellcheck disable=SC2086  # flags are words
    "$CXX" -std=c++20 "$here/use.cc" $flags -o "$work/use_cc"
    # shellcheck disable=SC2086
    "$CC" -std=c11 "$here/use.c" $flags -o "$work/use_c"
    expect "C++ 42" "$work/use_cc"
    expect "C 42" "$work/use_c"
    ;;
  headers)
    install_and_move
    for header in $(find "$prefix/include/engine" -name "*.h" | sort); do
      case $header in  # bridges to libraries that the engine itself does not need
        */cublas.h) needs=cublas_v2.h ;;
        */cudnn.h) needs=cudnn.h ;;
        */cuda_kernels.h) needs=cuda_runtime_api.h ;;
        *) needs=cstddef ;;
      esac
      if ! echo "#include <$needs>" | "$CXX" -E -x c++ - >/dev/null 2>&1; then
        echo "left out without $needs: $header"
        continue
      fi
      echo "#include <${header#"$prefix/include/"}>" >>"$work/all.cc"
    done
    cat "$work/all.cc"
    "$CXX" -std=c++20 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$prefix/include" "$work/all.cc"
    ;;
  add_subdirectory)
    # It compiles the engine once more: not optimized, and all sources at a time.
    configure_and_build "$here/add_subdirectory" -DENGINE_SOURCE_DIR="$SOURCE_DIR" -DCMAKE_BUILD_TYPE=Debug \
      -DCMAKE_CXX_FLAGS_DEBUG= -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0
    expect "C++ 42" "$work/build/use_cc"
    expect "C 42" "$work/build/use_c"
    ;;
  *)
    echo "unknown way: $1" >&2
    exit 2
    ;;
esac
