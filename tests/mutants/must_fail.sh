#!/bin/sh
# must_fail.sh BINARY FILTER: succeeds if the tests fail, crash or hang with the planted fault. Some faults show only where threads
# meet in a certain order, so the tests are repeated for up to 30 seconds until one notices.
"$1" --gtest_list_tests --gtest_filter="$2" | grep -q '^  ' || { echo "no test matches $2"; exit 1; }
end=$(($(date +%s) + 30))
while [ "$(date +%s)" -lt $end ]; do
  if ! timeout -s KILL 5 "$1" --gtest_filter="$2" --gtest_repeat=10 >/dev/null 2>&1; then
    echo "noticed by $2"
    exit 0
  fi
done
echo "the fault went unnoticed by $2"
exit 1
