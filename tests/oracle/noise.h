// Noise: delays at points of the program that the seed chooses: there a thread goes on, yields, or waits for some
// microseconds. What happens at a point is a hash of the seed, of the point's owner and of the point's number. So a
// seed gives the same noise every time, whichever thread of the engine passes.
//
// Threads: pure, except for the delay.
#pragma once

#include <chrono>
#include <thread>

#include "records.h"

namespace engine::oracle {

class Noise {
 public:
  Noise(uint64_t seed, int64_t one_in) : seed_(seed), one_in_(static_cast<uint64_t>(one_in)) {}

  void Point(uint64_t whose, uint64_t number) const {
    if (one_in_ == 0) return;
    const uint64_t chosen = MixHash(MixHash(seed_, whose), number);
    if (chosen % one_in_ != 0) return;
    const uint64_t how = chosen / one_in_;
    switch (how % 4) {
      case 0:
      case 1: std::this_thread::yield(); break;
      case 2: Spin(std::chrono::microseconds(how / 4 % 8)); break;
      default: std::this_thread::sleep_for(std::chrono::microseconds(how / 4 % 60)); break;
    }
  }

 private:
  // Keeps the processor; a sleep would give it away.
  static void Spin(std::chrono::microseconds length) {
    const auto until = std::chrono::steady_clock::now() + length;
    while (std::chrono::steady_clock::now() < until) {
    }
  }
  const uint64_t seed_, one_in_;
};

}  // namespace engine::oracle
