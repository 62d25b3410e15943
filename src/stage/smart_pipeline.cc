#include "smart_pipeline.h"

namespace engine::detail {

bool StepReader::Read(StepItem* item) {
  size_t values = 0;
  for (const SmartSource& source : sources_) values += source.inputs.size();
  item->values.resize(values);
  item->number = read();
  std::span<Value> rest = item->values;
  try {
    for (SmartSource& source : sources_) {
      if (!source.pull(rest.first(source.inputs.size()))) return false;
      rest = rest.subspan(source.inputs.size());
    }
  } catch (...) {
    if (ignored_(std::current_exception())) read_.fetch_add(1, std::memory_order_relaxed);
    throw;
  }
  read_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

template <class F>
auto SmartPipeline::Watched(F&& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (...) {
    if (step_.options().stage.closed_exception_types(std::current_exception()))
      data_ended_.store(true, std::memory_order_release);
    throw;
  }
}

SmartPipeline::SmartPipeline(const SmartStep& step, StepReader& reader) : step_(step), reader_(reader) {
  for (size_t k = 0; k < step.levels(); ++k) {
    StageOptions options = step.options().stage;
    if (k > 0) options.name += "-" + std::to_string(k + 1);
    const auto pull = [this, before = k > 0 ? levels_.back().get() : nullptr]() -> std::optional<StepItem> {
      if (before) return before->Take();
      return Watched([this]() -> std::optional<StepItem> {
        StepItem item;
        if (reader_.Read(&item)) return item;
        data_ended_.store(true, std::memory_order_release);
        return {};
      });
    };
    const auto make = [this, k](StepItem item) {
      return Watched([&] {
        step_.RunLevel(k, item);
        return std::move(item);
      });
    };
    if (step.serial(k)) {  // in the order of the items
      levels_.push_back(std::make_unique<Stage<StepItem>>(
          options,
          [pull, make]() -> std::optional<StepItem> {
            auto item = pull();
            if (!item) return {};
            return make(std::move(*item));
          },
          [](StepItem item) { return item; }));
    } else {
      levels_.push_back(std::make_unique<Stage<StepItem>>(options, pull, make));
    }
  }
}

SmartPipeline::~SmartPipeline() {
  Cancel();
  while (!levels_.empty()) levels_.pop_back();  // readers before what they read from
}

void SmartPipeline::Cancel() {
  for (const auto& level : levels_) level->Cancel();
}

uint64_t SmartPipeline::skipped() const {
  uint64_t sum = 0;
  for (const auto& level : levels_) sum += level->stats().skipped;
  return sum;
}

AskedReader::AskedReader(StageOptions options, StepReader& reader)
    : stage_({.name = options.name,
              .take_timeout_millis = options.take_timeout_millis,
              .pool = options.pool,
              .clock = options.clock},
             [this, &reader]() -> std::optional<Answer> {
               asked_.acquire();
               if (over_.load(std::memory_order_acquire)) return {};
               Answer answer;
               try {
                 answer.more = reader.Read(&answer.item);
               } catch (...) {
                 answer.error = std::current_exception();
               }
               return answer;
             }) {}

AskedReader::~AskedReader() { Cancel(); }

bool AskedReader::Read(StepItem* item) {
  if (!pending_) asked_.release();
  pending_ = true;
  auto answer = stage_.Take();
  pending_ = false;
  if (!answer) return false;
  if (answer->error) std::rethrow_exception(answer->error);
  *item = std::move(answer->item);
  return answer->more;
}

void AskedReader::Cancel() {
  stage_.Cancel();
  over_.store(true, std::memory_order_release);
  asked_.release();
}

}  // namespace engine::detail
