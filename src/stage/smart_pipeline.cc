#include "smart_pipeline.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/spi/stage_host.h"
#include "pool.h"
#include "staging_guard.h"

namespace engine::detail {

bool StepReader::Read(StepItem* item) {
  if (kept_) {
    *item = std::move(*kept_);
    kept_.reset();
    return true;
  }
  item->number = read();
  try {
    if (!pull_(&item->values)) return false;
  } catch (...) {
    if (ignored_(std::current_exception())) read_.fetch_add(1, std::memory_order_relaxed);
    throw;
  }
  read_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

StepPull PullOf(std::vector<SmartSource> sources) {
  return [sources = std::move(sources)](std::vector<Value>* values) {
    size_t count = 0;
    for (const SmartSource& source : sources) count += source.inputs.size();
    values->resize(count);
    std::span<Value> rest = *values;
    for (const SmartSource& source : sources) {
      if (!source.pull(rest.first(source.inputs.size()))) return false;
      rest = rest.subspan(source.inputs.size());
    }
    return true;
  };
}

template <class F>
auto SmartPipeline::Data::Watched(F&& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (...) {
    if (step->options().stage.closed_exception_types(std::current_exception()))
      ended.store(true, std::memory_order_release);
    throw;
  }
}

SmartPipeline::SmartPipeline(std::shared_ptr<const SmartStep> step, std::shared_ptr<StepReader> reader,
                             const std::vector<Size>& sizes)
    : data_(std::make_shared<Data>(std::move(step), std::move(reader))),
      taken_(data_->reader->read() - (data_->reader->keeps() ? 1 : 0)) {
  for (size_t k = 0; k < data_->step->levels(); ++k) {
    StageOptions options = data_->step->options().stage;
    if (options.autotune && k < sizes.size())
      options.capacity = std::max(options.capacity, sizes[k].capacity), options.num_threads = sizes[k].threads;
    if (data_->step->trial()) options.capacity = std::min(options.capacity, kTrialCapacity);
    if (k > 0) options.name += "-" + std::to_string(k + 1);
    const auto pull = [data = data_, before = k > 0 ? levels_.back() : nullptr]() -> std::optional<StepItem> {
      if (before) return before->Take();
      return data->Watched([&]() -> std::optional<StepItem> {
        StepItem item;
        if (data->reader->Read(&item)) return item;
        data->ended.store(true, std::memory_order_release);
        return {};
      });
    };
    const auto make = [data = data_, k](StepItem item) {
      return data->Watched([&] {
        const StageOptions& stage = data->step->options().stage;
        StageHost::Blocking(stage.host.get(), [&] { data->step->RunLevel(k, item); });
        if (stage.capacity_bytes > 0)
          item.counted = std::transform_reduce(item.values.begin(), item.values.end(), size_t{0}, std::plus<>(),
                                               std::mem_fn(&Value::bytes));
        return std::move(item);
      });
    };
    if (data_->step->serial(k)) {  // one item after another, by their numbers
      levels_.push_back(std::make_shared<Stage<StepItem>>(
          options,
          [pull, make]() -> std::optional<StepItem> {
            auto item = pull();
            if (!item) return {};
            return make(std::move(*item));
          },
          [](StepItem item) { return item; }));
    } else {
      levels_.push_back(std::make_shared<Stage<StepItem>>(options, pull, make));
    }
  }
}

SmartPipeline::~SmartPipeline() {
  Cancel();
  while (!levels_.empty()) levels_.pop_back();  // the last level first, because it reads from the one before
}

void SmartPipeline::Cancel() try {
  for (const auto& level : levels_) level->Cancel();
} catch (const ForkedWhilePending&) {  // in a fork's child: the producers are the parent's
}

std::vector<SmartPipeline::Size> SmartPipeline::Sizes(std::vector<Size> sizes) const {
  sizes.resize(levels_.size());
  for (size_t k = 0; k < levels_.size(); ++k) {
    const StageStats now = levels_[k]->stats();
    sizes[k] = {std::max(sizes[k].capacity, now.capacity), std::max(sizes[k].threads, now.threads)};
  }
  return sizes;
}

uint64_t SmartPipeline::skipped() const {
  uint64_t sum = 0;
  for (const auto& level : levels_) sum += level->stats().skipped;
  return sum;
}

AskedReader::AskedReader(StageOptions options, std::shared_ptr<StepReader> reader)
    : stage_({.name = options.name,
              .take_timeout = options.take_timeout,
              .pool = options.pool,
              .clock = options.clock,
              .host = options.host},
             [asking = asking_, reader = std::move(reader), host = options.host]() -> std::optional<Answer> {
               StageHost::Blocking(host.get(), [&] {
                 detail::StagePool::Lend lend;  // the stage that asks may need the seat
                 lend.Begin();
                 asking->asked.acquire();
               });
               if (asking->over.load(std::memory_order_acquire)) return {};
               Answer answer;
               try {
                 answer.more = reader->Read(&answer.item);
               } catch (...) {
                 answer.error = std::current_exception();
               }
               return answer;
             }) {}

AskedReader::~AskedReader() { Cancel(); }

bool AskedReader::Read(StepItem* item) {
  if (!pending_) asking_->asked.release();
  pending_ = true;
  auto answer = stage_.Take();
  pending_ = false;
  if (!answer) return false;
  if (answer->error) std::rethrow_exception(answer->error);
  *item = std::move(answer->item);
  return answer->more;
}

void AskedReader::Cancel() {
  try {
    stage_.Cancel();
  } catch (const ForkedWhilePending&) {  // in a fork's child, as above
  }
  asking_->over.store(true, std::memory_order_release);
  asking_->asked.release();
}

}  // namespace engine::detail
