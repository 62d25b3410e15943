// RankQueue: ready tasks, taken by rank. Replays of ranked plans and the simulator (src/costmodel) both take tasks from
// it, so that both take them in the same order.
//
// It is a set of places, of which 0 is the most urgent: a tree of bits, 64 to a word, in memory that the owner gives.
// Adding or taking a place touches one word of each level: three words for a quarter of a million tasks.
//
// Threads: none; if threads share a queue, its owner locks it. Errors: none. A place must not be added twice without
//          being taken.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace engine {

class RankQueue {
 public:
  static constexpr uint32_t kNothing = UINT32_MAX;

  static constexpr size_t WordsFor(uint32_t places) {
    size_t words = 0;
    for (size_t n = places;;) {
      n = (n + 63) / 64;
      words += n;
      if (n <= 1) return words;
    }
  }

  RankQueue() = default;
  // `words` are WordsFor(places) words, all 0.
  RankQueue(uint64_t* words, uint32_t places) noexcept {
    for (size_t n = places;;) {
      n = (n + 63) / 64;
      level_[levels_++] = words;
      words += n;
      if (n <= 1) return;
    }
  }

  void Add(uint32_t place) noexcept {
    ++size_;
    for (int l = 0; l < levels_; ++l, place >>= 6) {
      uint64_t& word = level_[l][place >> 6];
      const bool known = word != 0;
      word |= uint64_t{1} << (place & 63);
      if (known) return;
    }
  }
  // Takes the most urgent place; kNothing if there is none.
  uint32_t TakeFirst() noexcept {
    return Take([](uint64_t word) { return static_cast<uint32_t>(std::countr_zero(word)); });
  }
  // Takes the least urgent place; kNothing if there is none.
  uint32_t TakeLast() noexcept {
    return Take([](uint64_t word) { return 63 - static_cast<uint32_t>(std::countl_zero(word)); });
  }
  uint32_t size() const noexcept { return size_; }

 private:
  template <class Pick>
  uint32_t Take(Pick pick) noexcept {
    if (size_ == 0) return kNothing;
    --size_;
    uint32_t place = 0;
    for (int l = levels_; l-- > 0;) place = place << 6 | pick(level_[l][place]);
    uint32_t bit = place;
    for (int l = 0; l < levels_; ++l, bit >>= 6) {
      uint64_t& word = level_[l][bit >> 6];
      word &= ~(uint64_t{1} << (bit & 63));
      if (word != 0) break;
    }
    return place;
  }

  uint64_t* level_[6] = {};  // level_[0] has the leaves
  int levels_ = 0;
  uint32_t size_ = 0;
};

}  // namespace engine
