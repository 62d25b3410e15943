// SmartPipeline: the levels of a SmartStep as stages, one behind the other, from sources to items that are ready for the
// rest of the step.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <semaphore>
#include <vector>

#include "engine/smart_stage.h"

namespace engine::detail {

// The sources of a step, read in order. Used by one side at a time: the caller of Next, or the first stage's producers.
class StepReader {
 public:
  StepReader(std::vector<SmartSource> sources, ExceptionFilter ignored)
      : sources_(std::move(sources)), ignored_(std::move(ignored)) {}
  // False: one of them ended. What they throw of those that are ignored counts as an item, too.
  bool Read(StepItem* item);
  // relaxed: a counter.
  uint64_t read() const { return read_.load(std::memory_order_relaxed); }

 private:
  std::vector<SmartSource> sources_;
  ExceptionFilter ignored_;
  std::atomic<uint64_t> read_{0};
};

class SmartPipeline {
 public:
  SmartPipeline(const SmartStep& step, StepReader& reader);
  ~SmartPipeline();
  // The next item; none at the end: of the data, or of what was begun before Close.
  std::optional<StepItem> Take() { return levels_.back()->Take(); }
  void Close() { levels_.front()->Close(); }
  void Cancel();
  // The data has ended, not only this pipeline. After Take has said so.
  bool data_ended() const { return data_ended_.load(std::memory_order_acquire); }
  StageStats stats() const { return levels_.back()->stats(); }
  uint64_t skipped() const;

 private:
  // Runs fn; remembers an end of the data, also one that is said by an exception.
  template <class F>
  auto Watched(F&& fn) -> decltype(fn());
  const SmartStep& step_;
  StepReader& reader_;
  // release where the end is met, acquire in data_ended: the item before it was taken.
  std::atomic<bool> data_ended_{false};
  std::vector<std::unique_ptr<Stage<StepItem>>> levels_;
};

// A source that may block for ever, read on a thread of its own, one item when asked: so that waiting for it can end.
class AskedReader {
 public:
  AskedReader(StageOptions options, StepReader& reader);
  ~AskedReader();
  // As StepReader::Read; StageTimeoutError after take_timeout_millis; the item then comes with the next call.
  bool Read(StepItem* item);
  void Cancel();

 private:
  struct Answer {
    StepItem item;
    bool more = false;
    std::exception_ptr error;
  };
  std::counting_semaphore<> asked_{0};
  std::atomic<bool> over_{false};  // release before asked_ is released, acquire after
  bool pending_ = false;
  Stage<Answer> stage_;
};

}  // namespace engine::detail
