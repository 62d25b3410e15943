#!/bin/sh
# oracle_must_fail.sh ORACLE FEATURES SHAPE: succeeds if a random program fails, crashes or hangs with the planted fault, within 90
# seconds.
"$1" --count 0 --only "$2" --shape "$3" --features >/dev/null || { echo "these are no features, or no shape: $2, $3"; exit 1; }
end=$(($(date +%s) + 90))
seed=1
log=oracle_mutant.$$.log
trap 'rm -f "$log"' EXIT
bad='^(WRONG|CRASH|HANG|HUNG|ENDLESS|ENDED|LEAK)'
while [ "$(date +%s)" -lt $end ]; do
  if ! timeout -s KILL 60 "$1" --seed $seed --count 20 --most-bad 1 --hang 10 --mask none --only "$2" --shape "$3" >"$log" 2>&1 &&
    grep -qE "$bad" "$log"; then  # a machine that is busy may need more than a minute for twenty good ones
    echo "noticed by program $seed or one of the 19 behind it: $(grep -m 1 -A 1 -E "$bad" "$log" | cut -c 1-300)"
    exit 0
  fi
  seed=$((seed + 20))
done
echo "the fault went unnoticed by programs of $2"
exit 1
