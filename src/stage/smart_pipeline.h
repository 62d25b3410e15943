// SmartPipeline: the levels of a SmartStep as stages, one behind the other. They take items from the sources, and give
// items that are ready for the rest of the step.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <semaphore>
#include <vector>

#include "engine/smart_stage.h"

namespace engine::detail {

// StepReader: reads the sources of a step in order. One side uses it at a time: the caller of Next, or the producers of
// the first level.
class StepReader {
 public:
  StepReader(StepPull pull, ExceptionFilter ignored) : pull_(std::move(pull)), ignored_(std::move(ignored)) {}
  // False: a source has ended. If a source throws an ignored exception, that counts as an item too.
  bool Read(StepItem* item);
  // The next Read returns `item` again.
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
// Makes one pull of several sources.
StepPull PullOf(std::vector<SmartSource> sources);

// Its producers share what they need with it, because those of a front end are not joined, and may outlive it.
class SmartPipeline {
 public:
  // What autotune has made of each level.
  struct Size {
    size_t capacity;
    int threads;
  };
  // `sizes`: of the pipeline before, so that autotune goes on where it was; none for the first.
  SmartPipeline(std::shared_ptr<const SmartStep> step, std::shared_ptr<StepReader> reader,
                const std::vector<Size>& sizes);
  ~SmartPipeline();
  // How many items were begun and not taken.
  size_t begun() const { return data_->reader->read() - taken_; }
  // Waits for the next item; nothing at the end of the data, or of the items that were begun before Close.
  std::optional<StepItem> Take() {
    auto item = levels_.back()->Take();
    if (item) taken_ = item->number + 1;
    return item;
  }
  void Close() { levels_.front()->Close(); }
  void Cancel();
  // After Take has returned nothing: whether the data has ended, and not only this pipeline.
  bool data_ended() const { return data_->ended.load(std::memory_order_acquire); }
  StageStats stats() const { return levels_.back()->stats(); }
  // `sizes`, and what has grown since.
  std::vector<Size> Sizes(std::vector<Size> sizes) const;
  uint64_t skipped() const;

 private:
  struct Data {
    // Calls fn, and notes if it reports the end of the data, by its result or by an exception.
    template <class F>
    auto Watched(F&& fn) -> decltype(fn());
    const std::shared_ptr<const SmartStep> step;
    const std::shared_ptr<StepReader> reader;
    // release where the end is noticed, acquire in data_ended. Between them the last item was taken.
    std::atomic<bool> ended{false};
  };
  const std::shared_ptr<Data> data_;
  uint64_t taken_;  // number of the next item; only Take and begun, which the same caller calls, use it
  std::vector<std::shared_ptr<Stage<StepItem>>> levels_;
};

// AskedReader: reads a source that may block for ever, on a thread of its own, one item for each request, so that a
// caller can stop waiting.
class AskedReader {
 public:
  AskedReader(StageOptions options, std::shared_ptr<StepReader> reader);
  ~AskedReader();
  // As StepReader::Read, but StageTimeoutError after take_timeout; the next call then gets the item.
  bool Read(StepItem* item);
  bool pending() const { return pending_; }  // the next Read gets an item that was asked for before
  void Cancel();

 private:
  struct Answer {
    StepItem item;
    bool more = false;
    std::exception_ptr error;
  };
  struct Asking {
    std::counting_semaphore<> asked{0};
    std::atomic<bool> over{false};  // stored before `asked` is released, loaded after it was acquired
  };
  const std::shared_ptr<Asking> asking_ = std::make_shared<Asking>();  // the reading thread has it too
  bool pending_ = false;
  Stage<Answer> stage_;
};

}  // namespace engine::detail
