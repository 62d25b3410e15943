// ScheduleGuard: compares steps with a new schedule and steps with the old one, in pairs, and decides which schedule to keep.
// Pure: it gets durations and reads no clock.
//
// The order within pairs alternates (old new, new old), so that drift of the machine falls on both. If a step of a pair
// fails, the pair has no figure, and another pair is made. The new schedule is kept unless it is slower: by the median
// of the pairs' ratios, or in so many pairs that chance does not explain it (sign test at 95 %).
#pragma once

#include <cstdint>
#include <vector>

namespace engine::costmodel {

class ScheduleGuard {
 public:
  static constexpr uint32_t kWarmUps = 2;  // pairs that do not count, because they make frames and warm caches
  static constexpr uint32_t kPairs = 24;
  static constexpr uint32_t kMostInSigns = 17;   // more slower pairs than this, of 24, are not chance
  static constexpr double kTolerance = 1.01;     // of the median ratio, if the sign test says nothing
  static constexpr uint32_t kMostFailures = 64;  // failed steps after which the old schedule is kept

  struct Turn {
    uint64_t id;
    bool with_new;
  };
  // Which schedule the next step gets. Steps may overlap, and end in any order.
  Turn Next();
  void Add(uint64_t id, double nanos);
  // A step without a figure: it failed, or did not begin.
  void Void(bool failed);

  enum class Verdict : uint8_t { kOpen, kKeep, kGoBack };
  Verdict verdict() const { return verdict_; }
  double ratio() const { return ratio_; }    // median of new / old
  double before() const { return before_; }  // medians of the steps
  double after() const { return after_; }
  uint32_t slower() const { return slower_; }  // pairs in which the new schedule was slower
  uint32_t pairs() const { return static_cast<uint32_t>(ratios_.size()); }

 private:
  static bool WithNew(uint64_t id) { return (id % 2 == 0) != (id / 2 % 2 == 0); }
  void Decide();

  struct Pair {
    double nanos[2] = {-1, -1};  // old, new; -1: no figure, or not yet
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
