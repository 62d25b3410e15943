// Stage: runs the part of a step that does not depend on the model ahead of the rest, on threads of its own.
//
//   engine::Stage<Batch> stage({.capacity = 4, .num_threads = 2}, ReadRow, ParseRow);
//   while (std::optional<Batch> batch = stage.Take()) Step(*batch);
//
// A source is one or two callables. `pull` is called by one producer at a time, in order, and gives what `make` works on;
// several producers run `make` at once. With `make` alone the calls are independent of each other. Either returns an
// optional or throws EndOfData to end the stream.
//
// Threads:   any thread may take; producers start with the first Take, or with Start. They belong to the stage under every
//            policy of every engine, so they never hold a compute worker.
// Ownership: the stage owns its source and what it has buffered.
// Order:     items come out as one thread alone would make them, unless `ordered` is false.
// Errors:    what a source throws comes out of Take as itself, after the items before it, as often as asked; see
//            staging_area.h for the end, cancelling and forks. Source: DeepRec's tf.staged; what it lacks is added.
#pragma once

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

// A source whose type was erased. Both return false at the end of the data. `pull` may be empty.
struct StageSource {
  std::function<bool(StageItem*)> pull;
  std::function<bool(StageItem*)> make;  // turns what was pulled into the item; empty: it is the item
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

// Calls fn(args...) and boxes what it gives; false where it gave an empty optional.
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

// What Stage does whatever it carries.
class StageBase {
 public:
  ~StageBase();
  StageBase(const StageBase&) = delete;

  // Starts the producers, unless they run already.
  void Start();
  // No more items are begun; what was begun is delivered, then the stream ends.
  void Close();
  // Ends now: takers get CancelledError, what is buffered is thrown away. Does not wait for the source to return.
  void Cancel();
  // Begins again with the source as it was given, and nothing of the run before. Waits for the source to return.
  void Restart();
  // True once no producer is inside the source any more; false after `timeout`.
  bool JoinFor(Timeout timeout);

  StageStats stats() const;
  const StageOptions& options() const;

 protected:
  StageBase(StageOptions options, detail::StageSource source);
  static constexpr auto kForever = Timeout::kForever;
  StagingArea::Taken TakeItem(StageItem* item, Timeout timeout);
  void Restart(detail::StageSource source);

 private:
  struct State;
  std::unique_ptr<State> state_;
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

  // The next item; null at the end of the data, as often as asked. Waits for it.
  std::optional<T> Take() {
    StageItem item;
    if (TakeItem(&item, kForever) != StagingArea::Taken::kItem) return {};
    return detail::Unbox<T>(std::move(item));
  }
  // As Take, into `item`; says which of the three happened.
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
