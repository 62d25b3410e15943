// The list of an op's accesses (core/access_list.h): sorted by Var, whatever the order in which the caller named them.
#include "core/access_list.h"

#include <algorithm>
#include <vector>

#include "support/engine_test.h"

namespace engine::test {
namespace {

using namespace engine::detail;

// `vars` are numbers that stand for Vars; each access has its place in the caller's list.
std::vector<Access> Listed(const std::vector<int>& vars) {
  std::vector<Access> accesses(vars.size());
  for (size_t i = 0; i < vars.size(); ++i) {
    accesses[i].var = reinterpret_cast<Protocol::Var*>(static_cast<uintptr_t>(vars[i] + 1) * sizeof(VarCore));
    accesses[i].word = i << 2;
  }
  return accesses;
}

// All lists of so many Vars out of as many, those with repeats included.
template <class Check>
void ForAllLists(size_t length, Check check) {
  std::vector<int> vars(length);
  for (;;) {
    check(vars);
    size_t i = 0;
    while (i < length && ++vars[i] == static_cast<int>(length)) vars[i++] = 0;
    if (i == length) return;
  }
}

TEST(AccessListTest, EveryOrderOfUpToFiveVarsIsSortedAndKeepsTheOrderOfOneVar) {
  for (size_t length = 1; length <= 5; ++length) {
    ForAllLists(length, [](const std::vector<int>& vars) {
      std::vector<Access> accesses = Listed(vars);
      std::vector<size_t> expected(vars.size());
      for (size_t i = 0; i < vars.size(); ++i) expected[i] = i;
      std::ranges::stable_sort(expected, {}, [&](size_t i) { return vars[i]; });
      std::vector<int> sorted = vars;
      std::ranges::sort(sorted);
      const bool twice = std::ranges::adjacent_find(sorted) != sorted.end();

      EXPECT_EQ(Sort(accesses.data(), static_cast<uint32_t>(accesses.size())), twice);
      for (size_t i = 0; i < vars.size(); ++i) {
        EXPECT_EQ(accesses[i].listed(), expected[i]);
        EXPECT_EQ(accesses[i].var, Listed({sorted[i]})[0].var);
      }
    });
  }
}

}  // namespace
}  // namespace engine::test
