#!/bin/sh
# must_fail.sh BINARY FILTER GOOD: succeeds if the tests fail, crash or hang with the planted fault. GOOD has the same tests without
# it: what takes them four times as long, and three seconds more, hangs. Some faults show only where threads meet in a certain order,
# so the tests are repeated for up to 100 seconds until one notices.
"$1" --gtest_list_tests --gtest_filter="$2" | grep -q '^  ' || { echo "no test matches $2"; exit 1; }
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
begin=$(milliseconds)
"$3" --gtest_filter="$2" >/dev/null 2>&1 || { echo "$2 fails without the fault, too"; exit 1; }
took=$(($(milliseconds) - begin))
times=1
[ $took -gt 300 ] || times=10
patience=$((3 + took * times / 250))  # seconds
end=$(($(date +%s) + 100))
while [ "$(date +%s)" -lt $end ]; do
  timeout -s KILL $patience "$1" --gtest_filter="$2" --gtest_repeat=$times >/dev/null 2>&1
  case $? in
    0) ;;
    137) echo "noticed by $2, which does not end in $patience s"; exit 0 ;;
    *) echo "noticed by $2"; exit 0 ;;
  esac
done
echo "the fault went unnoticed by $2"
exit 1
