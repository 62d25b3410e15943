// Seed: random programs print theirs, and run it again when ENGINE_TEST_SEED says so.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include "support/random.h"

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

}  // namespace engine::test
