// Autotune: grows a stage's capacity and threads while that helps. Pure: it is told how windows of takes went.
//
// If both sides wait now and then, the buffer is too small to even out their jitter: one more item. If the consumer
// waits and the producers never do, the producers are too slow: one more thread, which is taken back if it makes
// nothing faster. The shares of waiting time are means over all windows since the last change. They must exceed the
// tolerance by their own uncertainty, because nothing else is ever made smaller again: so autotune ends at the smallest
// capacity that is good enough.
//
// The constants were chosen on the virtual clock (tests/stage/autotune_test.cc): what autotune finds there is within 2
// of the smallest capacity that reaches 1.03 of the best step, for jitter of 0 … 100 % and loads of 0.5 … 2.
#pragma once

#include <cstddef>
#include <cstdint>

namespace engine::detail {

class Autotune {
 public:
  struct Bounds {
    size_t max_capacity = 1;
    size_t capacity_bytes = 0;  // 0: no limit
    int max_threads = 1;
  };
  struct Window {
    uint64_t takes = 0;
    double seconds = 0;
    double consumer_wait = 0;  // seconds, summed over consumers
    double producer_wait = 0;  // seconds, summed over producers
    size_t item_bytes = 0;     // bytes of a typical item
  };
  Autotune(Bounds bounds, size_t capacity, int threads) : bounds_(bounds), capacity_(capacity), threads_(threads) {}

  // How many takes the next window has: enough to see a buffer of this capacity fill and empty.
  uint64_t window() const { return kWindow + kWindowPerItem * capacity_; }
  void Observe(const Window& window);
  size_t capacity() const { return capacity_; }
  int threads() const { return threads_; }

 private:
  static constexpr double kTolerance = 0.03;  // the share of time that either side may wait
  static constexpr double kCertainty = 1.5;   // standard errors
  static constexpr uint64_t kWindow = 32, kWindowPerItem = 8;
  static constexpr int kLeastWindows = 3;

  // The mean of a share, and its uncertainty (Welford).
  struct Share {
    int count = 0;
    double mean = 0, squares = 0;
    void Add(double share);
    double Error() const;  // standard error of the mean
    bool Above(double limit) const { return mean > limit + kCertainty * Error(); }
  };
  void StartOver() { consumer_ = producer_ = rate_ = {}; }

  Bounds bounds_;
  size_t capacity_;
  int threads_;
  Share consumer_, producer_, rate_;
  double rate_before_ = 0;  // takes a second before the thread that is on trial came; 0: none is on trial
  bool enough_threads_ = false;
};

}  // namespace engine::detail
