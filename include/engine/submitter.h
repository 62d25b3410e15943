// Submitter: anything that accepts an op. An engine runs the op; a decorator (bulk, capture) holds or records it.
//
// Threads: as the implementation says. An engine accepts ops on every thread, also inside ops.
// Order:   if one Push returned before another was called and the two ops conflict, the first op ends before the second
//          starts, whichever threads pushed them.
// Errors:  UsageError for a null, deleted or foreign Var or an unknown pool; BackPressureError at the hard bound. In
//          both cases nothing was pushed.
#pragma once

#include "engine/error.h"
#include "engine/op.h"

namespace engine {

namespace detail {
struct ClosureRef {
  const ClosureType* type;
  void* object;  // Submit moves or copies the closure from here, once
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
// Calls submit(OpDesc, body, Site) with the op that these arguments describe.
template <class Submit, class... Args>
decltype(auto) WithTypedOp(OpDesc desc, Submit&& submit, Args&&... args);

template <class F>
concept AsyncBody = std::is_invocable_v<std::decay_t<F>&, RunContext&, Completion>;
}  // namespace detail

class Submitter {
 public:
  // Pushes `fn(RunContext&)` or `fn()`. Returns at once, except that it may wait at the soft bound
  // (EngineOptions::max_pending).
  template <detail::SyncBody F>
  void Push(const OpDesc& desc, F&& fn, Site site = std::source_location::current()) {
    Submit(desc, detail::RefClosure(std::forward<F>(fn)), site);
  }
  // Pushes `fn`, which gets the objects that the op names: Push(reads(x), updates(y), [](const X&, Y&) {...}). See
  // data.h.
  template <class... Args>
    requires detail::TypedPush<Args...>
  void Push(Args&&... args) {
    Push(OpDesc{}, std::forward<Args>(args)...);
  }
  // The same for an op that needs a name, a placement or another field of OpDesc besides its sets.
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
  // As Push and PushAsync, but outside of ops, while max_pending ops are pending, they push nothing and return false: where those wait, and
  // also where those would go on because all that is pending waits for the caller.
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
  // For decorators: these pass an op on to another Submitter.
  static void Forward(Submitter& to, const OpDesc& desc, detail::ClosureRef fn, Site site) {
    to.Submit(desc, fn, site);
  }
  static bool TryForward(Submitter& to, const OpDesc& desc, detail::ClosureRef fn, Site site) {
    return to.TrySubmit(desc, fn, site);
  }
  virtual void Submit(const OpDesc& desc, detail::ClosureRef fn, Site site) = 0;
  // A Submitter that never waits need not override this.
  virtual bool TrySubmit(const OpDesc& desc, detail::ClosureRef fn, Site site) {
    Submit(desc, fn, site);
    return true;
  }
};

}  // namespace engine
