// Seed: random programs print theirs, and run it again when ENGINE_TEST_SEED says so.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

namespace engine::test {

inline uint64_t Seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("ENGINE_TEST_SEED");
    return given ? std::strtoull(given, nullptr, 0) : (uint64_t{std::random_device{}()} << 16 | 1);
  }();
  testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

// A line for SCOPED_TRACE: printed with whatever fails.
inline std::string SeedLine() { return "run again with ENGINE_TEST_SEED=" + std::to_string(Seed()); }

// Small, fast, and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d) {}
  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t n) { return Next() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace engine::test
