// Data: an object together with its Var, so that nothing touches an object that it did not name.
//
//   engine::Engine eng({.workers = 2});
//   engine::Data<double> x(eng, "x"), y(eng, "y");
//   eng.Push(writes(x), [](double& to) { to = 21; });
//   eng.Push({.name = "twice"}, reads(x), writes(y), [](const double& from, double& to) { to = 2 * from; });
//   std::printf("%g\n", eng.Wait(y));
//
// The body is given the objects of the Data that the op names, in that order: `const T&` for reads(x), `T&` for
// updates(x) and writes(x). It may take a RunContext& before these. reads(var) of a Var without an object names the
// Var, and gives the body nothing.
//
// A Data is a Var: it may stand wherever a Var may. An op that is pushed without types can name a Data and use
// object().
//
// Threads:   copying, dropping and naming a Data is safe on any thread; only ops that name a Data touch its object.
// Ownership: a counted handle. The object is destroyed with the last handle or the last op that was pushed with it,
//            whichever goes later, on the thread where that happens. It may outlive its engine. A typed push allocates
//            no more than an untyped one.
// Order:     see submitter.h. Errors: those of any push; a Data without an object is refused as a null Var is.
// Source:    the logical data of CUDASTF (NVIDIA), whose tasks name data.read(), data.rw() and data.write().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "engine/engine.h"

namespace engine {

namespace detail {

// DataBlock: the object, and two counts of who keeps it. Handles have a count of their own. Ops are counted as those of
// an Operator are, twice: pushers count the ops that they push, and ops that end count down from zero, so that pushers
// and workers do not write to one cache line.
template <class T>
struct DataBlock {
  template <class... Args>
  explicit DataBlock(Args&&... args) : object(std::forward<Args>(args)...) {}

  // relaxed: the caller has a handle, so the block cannot go meanwhile.
  void Retain() { handles.fetch_add(1, std::memory_order_relaxed); }
  // acq_rel: whoever drops the last handle sees all pushes through the others.
  void Release() {
    if (handles.fetch_sub(1, std::memory_order_acq_rel) == 1)
      Add(static_cast<int64_t>(pushed.load(std::memory_order_relaxed)));
  }
  // acq_rel: every use of the object comes before its destruction. Partner: this line, executed by the other ops.
  void Add(int64_t n) {
    if (left.fetch_add(n, std::memory_order_acq_rel) == -n) delete this;
  }

  std::atomic<uint32_t> handles{1};
  // relaxed: each push goes through a handle that is dropped later, and the acq_rel of that drop publishes the count.
  std::atomic<uint64_t> pushed{0};
  // While handles exist: minus the number of ops that have ended. After the last handle: the number of ops that have
  // not.
  alignas(64) std::atomic<int64_t> left{0};
  T object;
};

// DataPin: what an op's closure keeps of one Data.
template <class T>
class DataPin {
 public:
  explicit DataPin(DataBlock<T>* block) noexcept : block_(block) {
    if (block_) block_->pushed.fetch_add(1, std::memory_order_relaxed);
  }
  DataPin(DataPin&& other) noexcept : block_(std::exchange(other.block_, nullptr)) {}
  DataPin& operator=(DataPin&&) = delete;
  ~DataPin() {
    if (block_) block_->Add(-1);
  }
  T& object() const noexcept { return block_->object; }

 private:
  DataBlock<T>* block_;
};

// Use: what reads(), updates() and writes() return. It is one Var in one mode, and its object unless T is void.
template <class T, AccessMode kTheMode>
struct Use {
  static constexpr AccessMode kMode = kTheMode;
  using Param = std::conditional_t<kTheMode == AccessMode::kRead, const T&, T&>;
  VarRef var;
  DataBlock<T>* block;
  Site site;
  DataPin<T> Pin() const { return DataPin<T>(block); }
  static std::tuple<Param> Give(const DataPin<T>& pin) { return {pin.object()}; }
};
template <AccessMode kTheMode>
struct Use<void, kTheMode> {
  static constexpr AccessMode kMode = kTheMode;
  VarRef var;
  Site site;
  struct Nothing {};
  Nothing Pin() const { return {}; }
  static std::tuple<> Give(Nothing) { return {}; }
};
template <class T, AccessMode kMode>
inline constexpr bool kIsUse<Use<T, kMode>> = true;

// TypedBody: the body of a typed op. It calls `fn` with the objects.
template <class F, class... Uses>
struct TypedBody {
  F fn;
  std::tuple<decltype(std::declval<const Uses&>().Pin())...> pins;

  using Params = decltype(std::tuple_cat(Uses::Give(std::declval<const Uses&>().Pin())...));
  template <class Tuple>
  struct Takes;
  template <class... P>
  struct Takes<std::tuple<P...>> {
    static constexpr bool kPlain = std::is_invocable_v<F&, P...>;
    static constexpr bool kWithContext = std::is_invocable_v<F&, RunContext&, P...>;
  };
  static_assert(
      Takes<Params>::kPlain || Takes<Params>::kWithContext,
      "the body of an op takes what the op names, in that order: const T& for reads(x), T& for updates(x) and "
      "writes(x), nothing for a Var without an object; a RunContext& may stand before them");

  void operator()(RunContext& ctx) {
    [&]<size_t... kI>(std::index_sequence<kI...>) {
      auto params = std::tuple_cat(Uses::Give(std::get<kI>(pins))...);
      if constexpr (Takes<Params>::kPlain) {
        std::apply(fn, std::move(params));
      } else {
        std::apply(fn, std::tuple_cat(std::tuple<RunContext&>(ctx), std::move(params)));
      }
    }(std::index_sequence_for<Uses...>());
  }
};

[[noreturn]] void ThrowSetsBesideUses(Name name, Site site);

// Lists the Vars in `vars`, mode by mode in the order of the call, and makes these lists the sets of `desc`, an OpDesc
// or a NodeDesc.
template <class Desc, class... Uses>
void NameUses(Desc& desc, VarRef* vars, Site site, const Uses&... uses) {
  static_assert((kIsUse<Uses> && ...), "reads(), updates() and writes() are followed by the body, and by nothing else");
  if (desc.reads.size() + desc.updates.size() + desc.writes.size() != 0) ThrowSetsBesideUses(desc.name, site);
  constexpr size_t kReads = (size_t{Uses::kMode == AccessMode::kRead} + ...);
  constexpr size_t kUpdates = (size_t{Uses::kMode == AccessMode::kUpdate} + ...);
  size_t next[] = {0, kReads, kReads + kUpdates};
  ((vars[next[static_cast<size_t>(Uses::kMode)]++] = uses.var), ...);
  desc.reads = std::span<const VarRef>(vars, kReads);
  desc.updates = std::span<const VarRef>(vars + kReads, kUpdates);
  desc.writes = std::span<const VarRef>(vars + kReads + kUpdates, sizeof...(Uses) - kReads - kUpdates);
}

// Calls fn(body, uses...). The arguments come in the order of a push: uses..., body.
template <class Fn, class... Args>
decltype(auto) BodyFirst(Fn&& fn, Args&&... args) {
  constexpr size_t kUses = sizeof...(Args) - 1;
  auto all = std::forward_as_tuple(std::forward<Args>(args)...);
  return [&]<size_t... kI>(std::index_sequence<kI...>) -> decltype(auto) {
    return fn(std::get<kUses>(std::move(all)), std::get<kI>(all)...);
  }(std::make_index_sequence<kUses>());
}

template <class Submit, class... Args>
decltype(auto) WithTypedOp(OpDesc desc, Submit&& submit, Args&&... args) {
  const auto make = [&]<class F, class First, class... Uses>(F&& fn, const First& first,
                                                             const Uses&... uses) -> decltype(auto) {
    VarRef vars[] = {first.var, uses.var...};
    NameUses(desc, vars, first.site, first, uses...);
    return submit(desc, TypedBody<std::decay_t<F>, First, Uses...>{std::forward<F>(fn), {first.Pin(), uses.Pin()...}},
                  first.site);
  };
  return BodyFirst(make, std::forward<Args>(args)...);
}

}  // namespace detail

template <class T>
class Data : public Var {
  static_assert(std::is_object_v<T> && !std::is_const_v<T>,
                "Data<T> holds an object that ops change: T is no reference");

 public:
  Data() noexcept = default;  // has no object
  // Makes the object from `args`.
  template <class... Args>
  explicit Data(Engine& engine, std::string_view name = {}, Args&&... args)
      : Var(engine.NewVar(name)), block_(new detail::DataBlock<T>(std::forward<Args>(args)...)) {}
  Data(const Data& other) noexcept : Var(other), block_(other.block_) {
    if (block_) block_->Retain();
  }
  Data(Data&& other) noexcept : Var(std::move(other)), block_(std::exchange(other.block_, nullptr)) {}
  Data& operator=(Data other) noexcept {
    Var::operator=(std::move(other));
    std::swap(block_, other.block_);
    return *this;
  }
  ~Data() {
    if (block_) block_->Release();
  }

  // The object, even while ops use it. It is for the bodies of ops that were pushed without types and name this Data.
  T& object() const noexcept { return block_->object; }

 private:
  template <class U>
  friend detail::Use<U, AccessMode::kRead> reads(const Data<U>&, Site);
  template <class U>
  friend detail::Use<U, AccessMode::kUpdate> updates(const Data<U>&, Site);
  template <class U>
  friend detail::Use<U, AccessMode::kWrite> writes(const Data<U>&, Site);
  detail::DataBlock<T>* block_ = nullptr;
};

// reads, updates and writes are in lower case because they are read as words of the push. Each takes one Data or Var.
// The op's site is the line where they stand.
template <class T>
detail::Use<T, AccessMode::kRead> reads(const Data<T>& data, Site site = std::source_location::current()) {
  return {data, data.block_, site};
}
template <class T>
detail::Use<T, AccessMode::kUpdate> updates(const Data<T>& data, Site site = std::source_location::current()) {
  return {data, data.block_, site};
}
template <class T>
detail::Use<T, AccessMode::kWrite> writes(const Data<T>& data, Site site = std::source_location::current()) {
  return {data, data.block_, site};
}
inline detail::Use<void, AccessMode::kRead> reads(const Var& var, Site site = std::source_location::current()) {
  return {var, site};
}
inline detail::Use<void, AccessMode::kUpdate> updates(const Var& var, Site site = std::source_location::current()) {
  return {var, site};
}
inline detail::Use<void, AccessMode::kWrite> writes(const Var& var, Site site = std::source_location::current()) {
  return {var, site};
}

}  // namespace engine
