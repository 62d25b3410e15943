// What the tests of stages read and take: counting sources, and all items of a stage.
#pragma once

#include <numeric>
#include <optional>
#include <vector>

#include "engine/stage.h"

namespace engine::test {

// 0, 1, … n - 1, then the end.
inline auto Count(int n, int first = 0) {
  return [next = first, n]() mutable -> std::optional<int> {
    if (next == n) return {};
    return next++;
  };
}
inline const auto Same = [](int x) { return x; };

template <class T>
std::vector<T> Drain(Stage<T>& stage) {
  std::vector<T> all;
  while (auto item = stage.Take()) all.push_back(std::move(*item));
  return all;
}
inline std::vector<int> UpTo(int n) {
  std::vector<int> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace engine::test
