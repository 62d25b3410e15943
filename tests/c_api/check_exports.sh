#!/bin/sh
# What libengine.so exports is what it says: the functions of c_api.h and of the folder beside it, as listed in exports.txt and
# each with its symbol version, and beside them only public names of namespace engine.
# Usage: check_exports.sh LIBRARY C_API_H EXPORTS_TXT [NM]
set -eu
library=$1 header=$2 list=$3 nm=${4:-nm}
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
complain() {
  echo "$1" >&2
  failed=1
}

sort "$list" >"$work/listed"
cat "$header" "${header%.h}"/*.h | grep -v '^ *#' | grep -oE '\bEngine[A-Za-z]+\(' | tr -d '(' | sort -u >"$work/declared"
"$nm" -D --defined-only "$library" | awk '{print $NF}' >"$work/symbols"
grep '^Engine' "$work/symbols" | sort >"$work/versioned"
sed 's/@.*//' "$work/versioned" | sort >"$work/exported"

diff "$work/listed" "$work/declared" || complain "exports.txt (<) and the declarations of c_api.h (>) differ"
diff "$work/listed" "$work/exported" || complain "exports.txt (<) and the exported C functions (>) differ"
if grep -v '@@ENGINE_[0-9]' "$work/versioned"; then complain "these C functions have no symbol version"; fi

"$nm" -DC --defined-only "$library" | cut -d' ' -f3- | sed 's/@@ENGINE_.*//' | grep -v '^Engine' | sort -u |
  grep -vE '^ENGINE_[0-9.]+$' |
  grep -vE '^(typeinfo for|typeinfo name for|vtable for) engine::[A-Za-z]+$' |
  grep -vE '^engine::[A-Z][A-Za-z]*(::|\[abi:|\()' |
  grep -vE '^engine::detail::g_traces$' |
  grep -vE '^engine::detail::(AddCudaRuntime|DropCudaRuntime|RetainVar|ReleaseVar|ThrowWrongType|ThrowSetsBesideUses|PushResume|VarVersion|VarName|VarTag)\(' >"$work/others" || true
if [ -s "$work/others" ]; then
  cat "$work/others" >&2
  complain "these are exported and belong to no public interface"
fi
exit $failed
