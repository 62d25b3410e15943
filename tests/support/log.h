// Log: what happened, in the order in which it happened. Safe on any thread.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

namespace engine::test {

class Log {
 public:
  void Add(std::string line) {
    std::lock_guard lock(mu_);
    lines_.push_back(std::move(line));
  }
  std::vector<std::string> lines() const {
    std::lock_guard lock(mu_);
    return lines_;
  }
  size_t size() const { return lines().size(); }
  bool Contains(const std::string& part) const {
    const auto all = lines();
    return std::any_of(all.begin(), all.end(), [&](const auto& l) { return l.find(part) != l.npos; });
  }

 private:
  mutable std::mutex mu_;
  std::vector<std::string> lines_;
};

}  // namespace engine::test
