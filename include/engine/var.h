// Var: what ops are ordered by.
//
// A Var is a counted handle to one variable of one engine. It owns no user data, it stands for some: the engine orders
// the ops that name it. Every completed write raises the variable's version by one.
//
// Threads:   copying, dropping and reading a Var is safe on any thread; one Var object is not a mutex for itself.
// Ownership: when the last handle goes, the engine schedules the variable's deletion behind the ops that are pending on
//            it, so no op is cut short. A handle may outlive its engine; it then keeps only a little memory.
// Source:    MXNet's Engine::VarHandle. Here versions are read without a lock, and a deletion needs no allocation.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace engine {

namespace detail {
class EngineCore;
struct VarCore;
void RetainVar(VarCore* core) noexcept;
void ReleaseVar(VarCore* core) noexcept;
uint64_t VarVersion(const VarCore* core) noexcept;
const char* VarName(const VarCore* core) noexcept;
void* VarTag(const VarCore* core) noexcept;
}  // namespace detail

// VarRef: names a Var in a call, without counting a handle. The caller keeps the Var alive during the call.
class VarRef {
 public:
  explicit VarRef(detail::VarCore* core) noexcept : core_(core) {}
  explicit operator bool() const noexcept { return core_ != nullptr; }
  friend bool operator==(VarRef, VarRef) noexcept = default;
  // What NewVar was given: the object that the Var stands for, if the program says so. The engine does not look at it.
  void* tag() const noexcept { return core_ ? detail::VarTag(core_) : nullptr; }
  detail::VarCore* core() const noexcept { return core_; }

 protected:
  detail::VarCore* core_;
};

// Var: a VarRef that counts as a handle. Every call that takes a VarRef takes a Var.
class Var : public VarRef {
 public:
  Var() noexcept : VarRef(nullptr) {}
  // One more handle of the variable that `alive` names; the caller keeps that variable alive during the call.
  explicit Var(const VarRef& alive) noexcept : VarRef(alive) {
    if (core_) detail::RetainVar(core_);
  }
  Var(const Var& other) noexcept : Var(static_cast<const VarRef&>(other)) {}
  Var(Var&& other) noexcept : VarRef(std::exchange(other.core_, nullptr)) {}
  Var& operator=(Var other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }
  ~Var() {
    if (core_) detail::ReleaseVar(core_);
  }

  // How many writes have completed. Failed and skipped writes count too, because a version is a place in the order.
  uint64_t version() const noexcept { return core_ ? detail::VarVersion(core_) : 0; }
  const char* name() const noexcept { return core_ ? detail::VarName(core_) : ""; }

 private:
  friend class detail::EngineCore;
  explicit Var(detail::VarCore* counted) noexcept : VarRef(counted) {}
};
static_assert(sizeof(Var) == sizeof(VarRef));  // so that an array of Vars can be read as an array of VarRefs

namespace detail {
// Ranges whose elements convert to VarRef: containers, spans and views of Vars, VarRefs and Data.
template <class R>
concept VarRange = requires(R& range) {
  { *std::begin(range) } -> std::convertible_to<VarRef>;
  std::end(range);
};
}  // namespace detail

// Clang warns of a VarSet, or an OpDesc, that outlives what it looks at.
#ifdef __clang__
#define ENGINE_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define ENGINE_LIFETIMEBOUND
#endif

// VarSet: the Vars that an op names in one mode. It is a view: `{a, b}` lives as long as the expression that it is written
// in. Accepts `{a, b}`, one Var, and any range of Var, VarRef or Data. Vars and VarRefs that lie side by side, as in a
// vector, an array or a span, are not copied.
class VarSet {
 public:
  VarSet() noexcept = default;
  VarSet(const VarSet&) noexcept = default;
  VarSet(VarSet&) noexcept = default;  // without it, the range constructor would take a non-const VarSet
  VarSet& operator=(const VarSet&) noexcept = default;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wunknown-warning-option"
#pragma GCC diagnostic ignored "-Winit-list-lifetime"  // a view by contract: it lives for the full expression
  VarSet(std::initializer_list<VarRef> vars ENGINE_LIFETIMEBOUND) noexcept : data_(vars.begin()), size_(vars.size()) {}
#pragma GCC diagnostic pop
  VarSet(const Var& var ENGINE_LIFETIMEBOUND) noexcept : data_(&var), size_(1) {}
  template <class R>
    requires detail::VarRange<std::remove_reference_t<R>>
  VarSet(R&& vars, std::vector<VarRef>&& copy = {}) {
    if constexpr (requires { std::span<const VarRef>(std::as_const(vars)); }) {
      Look(std::span<const VarRef>(std::as_const(vars)));
    } else if constexpr (requires { std::span<const Var>(std::as_const(vars)); }) {
      Look(std::span<const Var>(std::as_const(vars)));
    } else {
      // `copy` is a temporary of the caller's expression, so it lives as long as this view.
      for (auto&& var : vars) copy.push_back(var);
      Look(std::span<const VarRef>(copy));
    }
  }

  const VarRef* begin() const noexcept { return data_; }
  const VarRef* end() const noexcept { return data_ + size_; }
  size_t size() const noexcept { return size_; }

 private:
  template <class V>
  void Look(std::span<V> vars) noexcept {
    data_ = vars.data();
    size_ = vars.size();
  }
  const VarRef* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace engine
