// Guard: steps with a new schedule beside steps with the old one, in pairs, until it is clear which to keep. Pure: it is
// told durations, and reads no clock.
//
// Pairs are turned about (old new, new old), so that drift falls on both. A step that fails leaves its pair without a
// figure, and another pair is made. The new one is kept unless it is slower: by the median of the pairs' ratios, or in so
// many pairs that chance does not explain it (sign test at 95 %).
#pragma once

#include <cstdint>
#include <vector>

namespace engine::costmodel {

class Guard {
 public:
  static constexpr uint32_t kWarmUps = 2;  // pairs that do not count: frames are made, caches warmed
  static constexpr uint32_t kPairs = 24;
  static constexpr uint32_t kMostInSigns = 17;  // more slower ones than that of 24 are no chance
  static constexpr double kTolerance = 1.01;    // of the median, where the signs say nothing
  static constexpr uint32_t kMostFailures = 64;

  struct Turn {
    uint64_t id;
    bool with_new;
  };
  // The next step's turn. Steps may overlap, and end in any order.
  Turn Next();
  void Add(uint64_t id, double nanos);
  // It has no figure: it failed, or was not even begun.
  void Void(bool failed);

  enum class Verdict : uint8_t { kOpen, kKeep, kGoBack };
  Verdict verdict() const { return verdict_; }
  double ratio() const { return ratio_; }    // median of new / old
  double before() const { return before_; }  // medians of the steps
  double after() const { return after_; }
  uint32_t slower() const { return slower_; }  // pairs in which the new one was slower
  uint32_t pairs() const { return static_cast<uint32_t>(ratios_.size()); }

 private:
  static bool WithNew(uint64_t id) { return (id % 2 == 0) != (id / 2 % 2 == 0); }
  void Decide();

  struct Pair {
    double nanos[2] = {-1, -1};  // old, new; -1: none, or not yet
  };
  std::vector<Pair> pairs_;
  uint64_t turns_ = 0;
  uint32_t failures_ = 0;
  std::vector<double> ratios_, old_, new_;
  Verdict verdict_ = Verdict::kOpen;
  double ratio_ = 0, before_ = 0, after_ = 0;
  uint32_t slower_ = 0;
};

}  // namespace engine::costmodel
