// Puts an op's accesses into the order of their Vars' addresses, each Var once. Pure: it works on accesses that have
// their Vars and modes, and that no other thread knows yet.
#pragma once

#include <algorithm>
#include <vector>

#include "order/op_record.h"

namespace engine::detail {

struct Named {
  Protocol::Var* var;
  uint64_t word;
};

// More Vars than this are sorted by SortMany. `./run perf mechanisms --only many_vars_20 many_vars_40 many_vars_320`
inline constexpr uint32_t kFewVars = 32;

// Puts two neighbours into order without a branch: which of two addresses is the lower one is a coin toss.
ENGINE_INLINE void Order(Named& a, Named& b) {
  const auto x = reinterpret_cast<uintptr_t>(a.var), y = reinterpret_cast<uintptr_t>(b.var);
  const uintptr_t swap = uintptr_t{0} - static_cast<uintptr_t>(y < x);
  const uintptr_t var = (x ^ y) & swap;
  const uint64_t word = (a.word ^ b.word) & swap;
  a = {reinterpret_cast<Protocol::Var*>(x ^ var), a.word ^ word};
  b = {reinterpret_cast<Protocol::Var*>(y ^ var), b.word ^ word};
}

// Sorts by Var, in place; accesses of one Var keep their order. Returns whether some Var came twice.
ENGINE_INLINE bool Sort(Access* a, uint32_t n) {
  const auto put = [](Access& to, Named from) {
    to.var = from.var;
    to.word = from.word;
  };
  if (n == 2 || n == 3) {
    Named first{a[0].var, a[0].word}, second{a[1].var, a[1].word}, third{};
    Order(first, second);
    if (n == 3) {
      third = {a[2].var, a[2].word};
      Order(second, third);
      Order(first, second);
      put(a[2], third);
    }
    put(a[0], first);
    put(a[1], second);
    return (first.var == second.var) | (second.var == third.var);
  }
  bool twice = false;
  for (uint32_t i = 1; i < n; ++i) {
    const Named one{a[i].var, a[i].word};
    uint32_t k = i;
    for (; k > 0 && one.var < a[k - 1].var; --k) put(a[k], {a[k - 1].var, a[k - 1].word});
    if (k != i) put(a[k], one);
    twice |= k > 0 && a[k - 1].var == one.var;
  }
  return twice;
}

// Gives what Sort gives. For more than kFewVars accesses, where Sort's insertion would take too long.
[[gnu::noinline]] inline void SortMany(Access* a, uint32_t n) {
  std::vector<Named> all(n);
  for (uint32_t i = 0; i < n; ++i) all[i] = {a[i].var, a[i].word};
  std::stable_sort(all.begin(), all.end(), [](const Named& x, const Named& y) { return x.var < y.var; });
  for (uint32_t i = 0; i < n; ++i) {
    a[i].var = all[i].var;
    a[i].word = all[i].word;
  }
}

// Merges sorted accesses of one Var. Two reads are a read, two writes are a write, everything else is an update.
// Returns how many accesses are left.
inline uint32_t Merge(Access* a, uint32_t n) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (kept > 0 && a[kept - 1].var == a[i].var) {
      uint64_t& word = a[kept - 1].word;
      const uint64_t listed = std::min(word >> 2, a[i].word >> 2);
      const uint64_t mode = (word & 3) == (a[i].word & 3) ? word & 3 : static_cast<uint64_t>(AccessMode::kUpdate);
      word = listed << 2 | mode;
    } else {
      a[kept].var = a[i].var;
      a[kept].word = a[i].word;
      ++kept;
    }
  }
  return kept;
}

}  // namespace engine::detail
