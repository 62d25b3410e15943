#include "autotune.h"

#include <cmath>

namespace engine::detail {

void Autotune::Share::Add(double share) {
  ++count;
  const double off = share - mean;
  mean += off / count;
  squares += off * (share - mean);
}

double Autotune::Share::Error() const { return std::sqrt(squares / (count - 1) / count); }

void Autotune::Observe(const Window& window) {
  if (window.seconds <= 0) return;
  consumer_.Add(window.consumer_wait / window.seconds);
  producer_.Add(window.producer_wait / (window.seconds * threads_));
  rate_.Add(static_cast<double>(window.takes) / window.seconds);
  if (rate_.count < kLeastWindows) return;
  if (rate_before_ > 0) {
    const bool faster = rate_.mean > rate_before_ * (1 + kTolerance);
    rate_before_ = 0;
    if (!faster) {
      --threads_;
      enough_threads_ = true;
      StartOver();
      return;
    }
  }
  if (!consumer_.Above(kTolerance)) return;
  if (producer_.Above(kTolerance)) {
    const bool fits = bounds_.capacity_bytes == 0 || window.item_bytes * (capacity_ + 1) <= bounds_.capacity_bytes;
    if (capacity_ >= bounds_.max_capacity || !fits) return;
    ++capacity_;
    StartOver();
  } else if (producer_.mean < kTolerance && threads_ < bounds_.max_threads && !enough_threads_) {
    ++threads_;
    rate_before_ = rate_.mean;
    StartOver();
  }
}

}  // namespace engine::detail
