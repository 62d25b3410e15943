#include "guard.h"

#include "samples.h"

namespace engine::costmodel {

Guard::Turn Guard::Next() {
  const uint64_t id = turns_++;
  if (id / 2 >= pairs_.size()) pairs_.emplace_back();
  return {id, (id % 2 == 0) != (id / 2 % 2 == 0)};
}

void Guard::Add(uint64_t id, double nanos) {
  if (verdict_ != Verdict::kOpen) return;
  const uint64_t number = id / 2;
  Pair& pair = pairs_[number];
  const bool with_new = (id % 2 == 0) != (number % 2 == 0);
  pair.nanos[with_new] = nanos;
  if (pair.nanos[0] < 0 || pair.nanos[1] < 0 || number < kWarmUps) return;
  if (pair.nanos[0] == 0 || pair.nanos[1] == 0) {
    // Steps that always fail are not compared for ever; what is slower nobody can say then.
    if (++failures_ >= kMostFailures) verdict_ = Verdict::kGoBack;
    return;
  }
  ratios_.push_back(pair.nanos[1] / pair.nanos[0]);
  old_.push_back(pair.nanos[0]);
  new_.push_back(pair.nanos[1]);
  slower_ += ratios_.back() > 1;
  if (ratios_.size() == kPairs) Decide();
}

void Guard::Decide() {
  std::vector<double> sorted = ratios_;
  ratio_ = EstimateOf(sorted).nanos;
  before_ = EstimateOf(old_).nanos;
  after_ = EstimateOf(new_).nanos;
  verdict_ = ratio_ > kTolerance || slower_ > kMostInSigns ? Verdict::kGoBack : Verdict::kKeep;
}

}  // namespace engine::costmodel
