// Digest: 128 bits that stand for a state; StateSet: the states seen so far, 16 bytes each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace checker {

struct Digest {
  uint64_t low = 0;
  uint64_t high = 0;

  // `bytes` must be a multiple of 8. Two multiply-and-fold chains with different constants.
  void Add(const void* data, size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (; bytes >= 16; bytes -= 16, p += 16) AddPair(Word(p), Word(p + 8));
    if (bytes) AddPair(Word(p), 0);
  }
  void AddPair(uint64_t a, uint64_t b) {
    const uint64_t next = Fold(low ^ a ^ 0x9e3779b97f4a7c15u, b ^ 0xe7037ed1a0b428dbu);
    high = Fold(high ^ b ^ 0x8ebc6af09c88c6e3u, a ^ 0x589965cc75374cc3u) + low;
    low = next;
  }
  bool operator==(const Digest&) const = default;

 private:
  static uint64_t Word(const unsigned char* p) {
    uint64_t word;
    std::memcpy(&word, p, sizeof(word));
    return word;
  }
  static uint64_t Fold(uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
};

class StateSet {
 public:
  StateSet() : slots_(size_t{1} << 16) {}

  // False if it was there already.
  bool Insert(const Digest& digest) {
    if (10 * size_ > 6 * slots_.size()) Grow();
    Digest& slot = Find(slots_, digest);
    if (slot == digest) return false;
    slot = digest;
    ++size_;
    return true;
  }
  size_t size() const { return size_; }

 private:
  static Digest& Find(std::vector<Digest>& slots, const Digest& digest) {
    size_t i = digest.low & (slots.size() - 1);
    while (!(slots[i] == digest) && !(slots[i] == Digest{})) i = (i + 1) & (slots.size() - 1);
    return slots[i];
  }
  void Grow() {
    std::vector<Digest> larger(2 * slots_.size());
    for (const Digest& digest : slots_)
      if (!(digest == Digest{})) Find(larger, digest) = digest;
    slots_.swap(larger);
  }

  std::vector<Digest> slots_;
  size_t size_ = 0;
};

}  // namespace checker
