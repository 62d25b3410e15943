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
  StepReader(StepPull pull, ExceptionFilter ignored) : pull_(std::move(pull)), ignored_(std::move(ignored)) {}
  // False: one of them ended. What they throw of those that are ignored counts as an item, too.
  bool Read(StepItem* item);
  // The item comes with the next Read again.
  void Keep(StepItem item) { kept_ = std::move(item); }
  bool keeps() const { return kept_.has_value(); }
  // relaxed: a counter.
  uint64_t read() const { return read_.load(std::memory_order_relaxed); }

 private:
  StepPull pull_;
  ExceptionFilter ignored_;
  std::optional<StepItem> kept_;
  std::atomic<uint64_t> read_{0};
};
// One pull of several sources.
StepPull PullOf(std::vector<SmartSource> sources);

// Its producers share what they use with it: those of a front end are not joined, and may outlive it.
class SmartPipeline {
 public:
  SmartPipeline(std::shared_ptr<const SmartStep> step, std::shared_ptr<StepReader> reader);
  ~SmartPipeline();
  // The next item; none at the end: of the data, or of what was begun before Close.
  std::optional<StepItem> Take() { return levels_.back()->Take(); }
  void Close() { levels_.front()->Close(); }
  void Cancel();
  // The data has ended, not only this pipeline. After Take has said so.
  bool data_ended() const { return data_->ended.load(std::memory_order_acquire); }
  StageStats stats() const { return levels_.back()->stats(); }
  uint64_t skipped() const;

 private:
  struct Data {
    // Runs fn; remembers an end of the data, also one that is said by an exception.
    template <class F>
    auto Watched(F&& fn) -> decltype(fn());
    const std::shared_ptr<const SmartStep> step;
    const std::shared_ptr<StepReader> reader;
    // release where the end is met, acquire in data_ended: the item before it was taken.
    std::atomic<bool> ended{false};
  };
  const std::shared_ptr<Data> data_;
  std::vector<std::shared_ptr<Stage<StepItem>>> levels_;
};

// A source that may block for ever, read on a thread of its own, one item when asked: so that waiting for it can end.
class AskedReader {
 public:
  AskedReader(StageOptions options, std::shared_ptr<StepReader> reader);
  ~AskedReader();
  // As StepReader::Read; StageTimeoutError after take_timeout; the item then comes with the next call.
  bool Read(StepItem* item);
  void Cancel();

 private:
  struct Answer {
    StepItem item;
    bool more = false;
    std::exception_ptr error;
  };
  struct Asking {
    std::counting_semaphore<> asked{0};
    std::atomic<bool> over{false};  // release before `asked` is released, acquire after
  };
  const std::shared_ptr<Asking> asking_ = std::make_shared<Asking>();  // shared with the thread that reads
  bool pending_ = false;
  Stage<Answer> stage_;
};

}  // namespace engine::detail
