// Submitter: anything that accepts an op. The engine runs it; decorators (bulk, capture) hold or record it.
//
// Threads: as the implementation says; the engine's is safe on every thread, inside ops too.
// Order:   if one Push returned before another began and the two conflict, the first finishes before the second
//          starts, whichever threads pushed them.
// Errors:  UsageError for a null, deleted or foreign Var or an unknown pool, BackPressureError at the hard bound:
//          nothing was pushed then.
#pragma once

#include "engine/error.h"
#include "engine/op.h"

namespace engine {

namespace detail {
struct ClosureRef {
  const ClosureType* type;
  void* object;  // constructed from, once, during Submit
};

template <bool kAsync = false, class F>
ClosureRef RefClosure(F&& fn) noexcept {
  using Fn = std::decay_t<F>;
  return {&ClosureTraits<Fn, F&&, kAsync>::kType, const_cast<void*>(static_cast<const void*>(std::addressof(fn)))};
}

template <class F>
concept SyncBody = std::is_invocable_v<std::decay_t<F>&, RunContext&> || std::is_invocable_v<std::decay_t<F>&>;
// What reads(), updates() and writes() return (data.h).
template <class A>
inline constexpr bool kIsUse = false;
template <class First, class...>
inline constexpr bool kStartsWithUse = kIsUse<std::remove_cvref_t<First>>;
template <class... Args>
concept TypedPush = sizeof...(Args) >= 2 && kStartsWithUse<Args...>;
// Calls submit(OpDesc, body, Site) with the op that such arguments describe.
template <class Submit, class... Args>
decltype(auto) WithTypedOp(OpDesc desc, Submit&& submit, Args&&... args);

template <class F>
concept AsyncBody = std::is_invocable_v<std::decay_t<F>&, RunContext&, Completion>;
}  // namespace detail

class Submitter {
 public:
  // Pushes `fn(RunContext&)` or `fn()`; returns at once (see EngineOptions::max_pending for the one exception).
  template <detail::SyncBody F>
  void Push(const OpDesc& desc, F&& fn, Site site = std::source_location::current()) {
    Submit(desc, detail::RefClosure(std::forward<F>(fn)), site);
  }
  // Pushes `fn`, which is given the objects that the op names: Push(reads(x), updates(y), [](const X&, Y&) {...}). See data.h.
  template <class... Args>
    requires detail::TypedPush<Args...>
  void Push(Args&&... args) {
    Push(OpDesc{}, std::forward<Args>(args)...);
  }
  // The same, where the op needs a name, a placement or anything else of OpDesc but its sets.
  template <class... Args>
    requires detail::TypedPush<Args...>
  void Push(const OpDesc& desc, Args&&... args) {
    const auto submit = [this](const OpDesc& op, auto&& body, Site site) { this->Push(op, std::move(body), site); };
    detail::WithTypedOp(desc, submit, std::forward<Args>(args)...);
  }
  // Pushes `fn(RunContext&, Completion)`; the op ends when its Completion is called.
  template <detail::AsyncBody F>
  void PushAsync(const OpDesc& desc, F&& fn, Site site = std::source_location::current()) {
    Submit(desc, detail::RefClosure<true>(std::forward<F>(fn)), site);
  }
  // As Push / PushAsync, but returns false instead of waiting at the soft bound.
  template <detail::SyncBody F>
  bool TryPush(const OpDesc& desc, F&& fn, Site site = std::source_location::current()) {
    return TrySubmit(desc, detail::RefClosure(std::forward<F>(fn)), site);
  }
  template <class... Args>
    requires detail::TypedPush<Args...>
  bool TryPush(const OpDesc& desc, Args&&... args) {
    const auto submit = [this](const OpDesc& op, auto&& body, Site site) {
      return this->TryPush(op, std::move(body), site);
    };
    return detail::WithTypedOp(desc, submit, std::forward<Args>(args)...);
  }
  template <detail::AsyncBody F>
  bool TryPushAsync(const OpDesc& desc, F&& fn, Site site = std::source_location::current()) {
    return TrySubmit(desc, detail::RefClosure<true>(std::forward<F>(fn)), site);
  }

 protected:
  ~Submitter() = default;
  // For decorators: hands an op on.
  static void Forward(Submitter& to, const OpDesc& desc, detail::ClosureRef fn, Site site) {
    to.Submit(desc, fn, site);
  }
  static bool TryForward(Submitter& to, const OpDesc& desc, detail::ClosureRef fn, Site site) {
    return to.TrySubmit(desc, fn, site);
  }
  virtual void Submit(const OpDesc& desc, detail::ClosureRef fn, Site site) = 0;
  // Those that never wait need not say it twice.
  virtual bool TrySubmit(const OpDesc& desc, detail::ClosureRef fn, Site site) {
    Submit(desc, fn, site);
    return true;
  }
};

}  // namespace engine
