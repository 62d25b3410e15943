// Stage: runs the part of a step that does not depend on the model ahead of the rest, on threads of its own.
//
//   engine::Stage<Batch> stage({.capacity = 4, .num_threads = 2}, ReadRow, ParseRow);
//   while (std::optional<Batch> batch = stage.Take()) Step(*batch);
//
// A source is one or two callables. Producers call `pull` one at a time and in order; several producers call `make` at
// once, each on what its `pull` returned. A source with `make` alone makes items that are independent of each other.
// Either callable ends the stream by an empty optional or by throwing EndOfData.
//
// Threads:   any thread may take. The producers start with the first Take, or with Start. They are threads of the stage
//            whatever policy an engine has, so they never occupy a compute worker.
// Ownership: the stage owns its source and the items that it has buffered.
// Order:     items come out in the order in which one thread alone would make them, unless `ordered` is false.
// Errors:    Take throws an exception of the source as it is, after the items before it and at every later call. See
//            spi/staging_area.h for the end, cancelling and forks. Source: DeepRec's tf.staged; what it lacks is added.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "engine/spi/staging_area.h"
#include "engine/timeout.h"
#include "engine/value.h"

namespace engine {

namespace detail {

// A source whose type was erased. Both functions return false at the end of the data. `pull` may be empty.
struct StageSource {
  std::function<bool(StageItem*)> pull;
  std::function<bool(StageItem*)> make;  // turns what was pulled into the item; empty: what was pulled is the item
};

template <class T>
StageItem Box(T value) {
  const size_t bytes = BytesOf(value);
  return StageItem(
      new T(std::move(value)), [](void* data) noexcept { delete static_cast<T*>(data); }, bytes);
}
template <class T>
T Unbox(StageItem item) {
  std::unique_ptr<T> value(static_cast<T*>(item.Release()));
  return std::move(*value);
}

template <class R>
struct Plain {
  using Type = R;
};
template <class R>
struct Plain<std::optional<R>> {
  using Type = R;
};

// Calls fn(args...) and boxes the result; returns false for an empty optional.
template <class T, class F, class... Args>
bool Give(StageItem* item, F& fn, Args&&... args) {
  auto made = fn(std::forward<Args>(args)...);
  if constexpr (std::is_same_v<decltype(made), T>) {
    *item = Box<T>(std::move(made));
  } else {
    if (!made) return false;
    *item = Box<T>(std::move(*made));
  }
  return true;
}

}  // namespace detail

// What a Stage does whatever the type of its items is.
class StageBase {
 public:
  ~StageBase();
  StageBase(const StageBase&) = delete;

  // Starts the producers, unless they run already.
  void Start();
  // Producers begin no more items. Consumers get those that were begun, then the stream ends.
  void Close();
  // Ends the stream now: Take throws CancelledError, and buffered items are dropped. Does not wait until the source
  // returns.
  void Cancel();
  // Starts over with the source as it was given to the constructor, and keeps nothing of the stream before. Waits until
  // the source returns. Of several calls at once, the last to end counts. A call that throws has changed nothing.
  void Restart();
  // Waits until no producer is inside the source; returns false after `timeout`. UsageError in the source itself, as of Restart.
  bool JoinFor(Timeout timeout);

  StageStats stats() const;
  const StageOptions& options() const;

 protected:
  StageBase(StageOptions options, detail::StageSource source);
  static constexpr auto kForever = Timeout::kForever;
  StagingArea::Taken TakeItem(StageItem* item, Timeout timeout);
  void Restart(detail::StageSource source);
  void CheckRestart() const;  // throws what Restart would throw for whoever calls it

 private:
  struct State;
  State* Now() const;
  std::atomic<State*> state_;  // owned; changes only in a fork's child, where several threads may restart it at once
};

template <class T>
class Stage final : public StageBase {
 public:
  // `make`: T() or std::optional<T>().
  template <class Make>
  Stage(StageOptions options, Make make) : StageBase(std::move(options), Source(std::move(make))) {}
  // `pull`: R() or std::optional<R>(); `make`: T(R) or std::optional<T>(R).
  template <class Pull, class Make>
  Stage(StageOptions options, Pull pull, Make make)
      : StageBase(std::move(options), Source(std::move(pull), std::move(make))) {}

  // Waits for the next item and returns it; returns null at the end of the data, at every later call too.
  std::optional<T> Take() {
    StageItem item;
    if (TakeItem(&item, kForever) != StagingArea::Taken::kItem) return {};
    return detail::Unbox<T>(std::move(item));
  }
  // As Take, but moves the item into `item` and waits for `timeout` at most. Returns kItem, kEnd or kTimeout.
  StagingArea::Taken TakeFor(std::optional<T>* item, Timeout timeout) {
    StageItem taken;
    const auto result = TakeItem(&taken, timeout);
    if (result == StagingArea::Taken::kItem) *item = detail::Unbox<T>(std::move(taken));
    return result;
  }

  using StageBase::Restart;
  template <class... Callables>
  void RestartWith(Callables... source) {
    Restart(Source(std::move(source)...));
  }

 private:
  template <class Make>
  static detail::StageSource Source(Make make) {
    return {.pull = {},
            .make = [make = std::move(make)](StageItem* item) mutable { return detail::Give<T>(item, make); }};
  }
  template <class Pull, class Make>
  static detail::StageSource Source(Pull pull, Make make) {
    using R = typename detail::Plain<std::invoke_result_t<Pull&>>::Type;
    return {.pull = [pull = std::move(pull)](StageItem* item) mutable { return detail::Give<R>(item, pull); },
            .make =
                [make = std::move(make)](StageItem* item) mutable {
                  return detail::Give<T>(item, make, detail::Unbox<R>(std::move(*item)));
                }};
  }
};

}  // namespace engine
