#!/bin/sh
# must_fail.sh BINARY FILTER: succeeds if the tests fail, crash or hang with the planted fault.
"$1" --gtest_list_tests --gtest_filter="$2" | grep -q '^  ' || { echo "no test matches $2"; exit 1; }
if timeout -s KILL 5 "$1" --gtest_filter="$2" --gtest_repeat=10 >/dev/null 2>&1; then
  echo "the fault went unnoticed by $2"
  exit 1
fi
echo "noticed by $2"
