#include "schedule_guard.h"

#include "samples.h"

namespace engine::costmodel {

ScheduleGuard::Turn ScheduleGuard::Next() {
  const uint64_t id = turns_++;
  if (id / 2 >= pairs_.size()) pairs_.emplace_back();
  return {id, WithNew(id)};
}

void ScheduleGuard::Add(uint64_t id, double nanos) {
  if (verdict_ != Verdict::kOpen) return;
  const uint64_t number = id / 2;
  double(&pair)[2] = pairs_[number].nanos;
  pair[WithNew(id)] = nanos;
  if (number < kWarmUps || pair[0] <= 0 || pair[1] <= 0) return;
  ratios_.push_back(pair[1] / pair[0]);
  old_.push_back(pair[0]);
  new_.push_back(pair[1]);
  slower_ += ratios_.back() > 1;
  if (ratios_.size() >= kPairs) Decide();  // more: a decision found no memory
}

// Steps that always fail are not compared for ever: after kMostFailures of them nothing shows that the new schedule is
// better.
void ScheduleGuard::Void(bool failed) {
  failures_ += failed;
  if (verdict_ == Verdict::kOpen && failures_ >= kMostFailures) verdict_ = Verdict::kGoBack;
}

void ScheduleGuard::Decide() {
  std::vector<double> sorted = ratios_;
  ratio_ = EstimateOf(sorted).nanos;
  before_ = EstimateOf(old_).nanos;
  after_ = EstimateOf(new_).nanos;
  verdict_ = ratio_ > kTolerance || slower_ > kMostInSigns ? Verdict::kGoBack : Verdict::kKeep;
}

}  // namespace engine::costmodel
