// Ends and StepBlock: when the steps of one block of a comparison were asked for, began and ended, and so what they took.
//
// A step takes what lies between two ends. For a caller that waits for its steps, a pause (as between epochs) is taken off;
// it says nothing about either way. For a caller with many steps in flight the slower of two paces counts: that at which its
// steps began, and that at which the same steps ended. While their number grows, steps begin faster than they end; while those
// of an earlier, faster block run out, steps end faster than new ones begin.
//
// A block's first steps do not count. If the caller waits for each step, one does not: the stage has no item yet, so
// nothing runs ahead of that step. The block ends when the last item that the stage has begun was used, so each item's
// staged work and its step are in the same block. If the caller does not wait, steps of the block before are still in
// flight. Then three groups do not count: as many steps as were started before the first one ended, as many again, and
// those for which the stage had an item ready.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/sync.h"

namespace engine::detail {

using Times = std::vector<double>;  // in seconds

inline double Mean(const Times& times) {
  double sum = 0;
  for (double t : times) sum += t;
  return times.empty() ? 0 : sum / static_cast<double>(times.size());
}
inline double Median(Times times) {
  if (times.empty()) return 0;
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return times.size() % 2 ? *middle : (*middle + *std::max_element(times.begin(), middle)) / 2;
}

// Makes room for one more, so that the next push_back needs no memory.
inline void MakeRoom(Times& times) {
  if (times.size() == times.capacity()) times.reserve(2 * times.size() + 8);
}

// Ends: when the steps of one block ended. Threads: any.
class Ends {
 public:
  // Makes room for the end of step `step`, so that Add needs no memory: an op that no program pushed calls it, so it
  // must not fail.
  void Expect(size_t step) {
    MutexLock lock(mu_);
    if (ended_.size() <= step) ended_.resize(step + 1);
    if (times_.capacity() <= step) times_.reserve(2 * step + 8);
  }
  // Step `step`, which was expected, ended at `now`. Steps are listed in the order of their starts, so a step counts when all steps before
  // it have ended.
  void Add(size_t step, double now) {
    MutexLock lock(mu_);
    ended_[step] = true;
    while (times_.size() < ended_.size() && ended_[times_.size()]) times_.push_back(now);
  }
  size_t count() const {
    MutexLock lock(mu_);
    return times_.size();
  }
  // When `step`, which is below count(), ended.
  double operator[](size_t step) const {
    MutexLock lock(mu_);
    return times_[step];
  }

 private:
  mutable Mutex mu_;
  std::vector<bool> ended_ GUARDED_BY(mu_);
  Times times_ GUARDED_BY(mu_);
};

// Pure but for `ends`, which the ends of steps may be added to on any thread.
class StepBlock {
 public:
  struct Took {
    Times rest;  // of each step that counts
    Times got;   // how long its caller waited for its item; not in `rest`
  };

  // `skip`: how many steps of a caller that waits do not count. `ahead`: as many items as a stage has ready.
  StepBlock(bool staged, size_t skip, size_t ahead) : staged_(staged), skip_(skip), ahead_(ahead) {}

  bool staged() const { return staged_; }
  size_t started() const { return begins_.size(); }
  const std::shared_ptr<Ends>& ends() const { return ends_; }

  // One more step is about to be started. After this neither its start nor its end needs memory.
  void Expect() {
    for (Times* times : {&asked_, &begins_, &got_}) MakeRoom(*times);
    ends_->Expect(started());
  }
  // The expected step, asked for at `asked`, was started `now`; its caller took `got` seconds to get the item. `drained`: the
  // stage was being emptied.
  void Started(double asked, double now, double got, bool drained) {
    asked_.push_back(asked);
    begins_.push_back(now);
    got_.push_back(got);
    if (!drained) planned_ = begins_.size();
    Look();
  }
  // More steps may have ended.
  void Look() {
    if (first_ == 0 && ends_->count() > 0) first_ = begins_.size();
  }
  // Whether it is known if the caller waits for its steps; and whether it does.
  bool known() const { return first_ > 0; }
  bool waits() const { return first_ > 0 && first_ <= 2; }
  // Number of the first step that counts, of those that know() how the caller is.
  size_t from() const { return waits() ? skip_ : 2 * first_ + ahead_ - 1; }
  // How many steps that count have ended.
  size_t counted() const {
    const size_t to = std::min(ends_->count(), waits() ? started() : planned_);
    return known() && to > from() ? to - from() : 0;
  }
  // Whether all steps that count have ended, of a block that has all its steps.
  bool over() const { return counted() > 0 && (!waits() || ends_->count() >= started()); }

  // Seconds from where its first step was asked for to where its last one began, for a caller that waits.
  double lasted() const { return begins_.back() - asked_.front(); }

  Took took() const {
    Took out;
    const size_t from = this->from(), to = from + counted();
    if (to == from) return out;
    const Ends& ends = *ends_;
    const bool by_ends = ends[to - 1] - ends[from - 1] >= begins_[to - 1] - begins_[from - 1];
    Times apart, gaps;  // in a gap nothing was in flight, and nobody had asked for the step
    for (size_t i = from; i < to; ++i) {
      apart.push_back(begins_[i] - begins_[i - 1]);
      gaps.push_back(std::max(0.0, asked_[i] - ends[i - 1]));
    }
    const double longest = kPause * Median(std::move(apart)), usual = Median(gaps);
    for (size_t i = from; i < to; ++i) {
      double t = by_ends ? ends[i] - ends[i - 1] : begins_[i] - begins_[i - 1];
      const double gap = gaps[i - from];
      if (gap > longest) t -= gap - usual;
      const double got = waits() ? std::min(got_[i], t) : 0;
      out.got.push_back(got);
      out.rest.push_back(std::max(0.0, t - got));
    }
    return out;
  }

 private:
  static constexpr double kPause = 4;  // in steps; a shorter gap is the caller's own work, which a stage may slow down

  bool staged_;
  size_t skip_, ahead_;
  std::shared_ptr<Ends> ends_ = std::make_shared<Ends>();
  Times asked_, begins_, got_;
  size_t planned_ = 0;  // how many steps were not drained
  size_t first_ = 0;    // how many had started when the first one ended; 0: it has not ended
};

}  // namespace engine::detail
