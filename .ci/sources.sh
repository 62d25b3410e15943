#!/bin/sh
# Lists the C, C++ and CUDA sources that are ours, tracked or not, one a line.
cd "$(dirname "$0")/.." || exit 1
find include src python tests perf examples .ci -type d \( -name .cache -o -name __pycache__ \) -prune -o -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.c' -o -name '*.cu' -o -name '*.cuh' \) -print | sort
