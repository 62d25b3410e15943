// Var: what ops are ordered by.
//
// A Var is a counted handle to one variable of one engine. It owns no user data: it stands for it, and the
// engine keeps the order of the ops that name it. Every completed write moves the variable's version by one.
//
// Threads:   copying, dropping and reading a Var is safe on any thread; one Var object is not a mutex for itself.
// Ownership: the last handle to go schedules the deletion behind the pending ops; nothing is cut short, and
//            handles may outlive their engine (they then only hold a little memory).
// Source:    MXNet's Engine::VarHandle, with versions read without a lock and deletion that needs no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>

namespace engine {

namespace detail {
class EngineCore;
struct VarCore;
void RetainVar(VarCore* core) noexcept;
void ReleaseVar(VarCore* core) noexcept;
uint64_t VarVersion(const VarCore* core) noexcept;
const char* VarName(const VarCore* core) noexcept;
}  // namespace detail

class Var {
 public:
  Var() noexcept = default;
  Var(const Var& other) noexcept : core_(other.core_) {
    if (core_) detail::RetainVar(core_);
  }
  Var(Var&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
  Var& operator=(Var other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }
  ~Var() {
    if (core_) detail::ReleaseVar(core_);
  }

  explicit operator bool() const noexcept { return core_ != nullptr; }
  friend bool operator==(const Var&, const Var&) noexcept = default;

  // Completed writes so far; failed and skipped ones count, because a version is a position in the order.
  uint64_t version() const noexcept { return core_ ? detail::VarVersion(core_) : 0; }
  const char* name() const noexcept { return core_ ? detail::VarName(core_) : ""; }

 private:
  friend class VarRef;
  friend class detail::EngineCore;
  explicit Var(detail::VarCore* counted) noexcept : core_(counted) {}
  detail::VarCore* core_ = nullptr;
};

// VarRef: a Var named in a call, not counted. The caller keeps the Var for the length of the call.
class VarRef {
 public:
  VarRef(const Var& var) noexcept : core_(var.core_) {}  // NOLINT: implicit by design
  explicit VarRef(detail::VarCore* core) noexcept : core_(core) {}
  detail::VarCore* core() const noexcept { return core_; }

 private:
  detail::VarCore* core_;
};

// VarSet: the Vars that an op names in one role. A view: it lives for the call that it is written in.
// Accepts `{a, b}`, one Var, std::vector<Var>, std::span<const Var>, std::span<const VarRef>.
class VarSet {
 public:
  VarSet() noexcept = default;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wunknown-warning-option"
#pragma GCC diagnostic ignored "-Winit-list-lifetime"  // a view by contract: it lives for the full expression
  VarSet(std::initializer_list<VarRef> vars) noexcept : data_(vars.begin()), size_(vars.size()) {}
#pragma GCC diagnostic pop
  VarSet(const Var& var) noexcept : data_(reinterpret_cast<const VarRef*>(&var)), size_(1) {}
  VarSet(std::span<const VarRef> vars) noexcept : data_(vars.data()), size_(vars.size()) {}
  VarSet(std::span<const Var> vars) noexcept : data_(reinterpret_cast<const VarRef*>(vars.data())), size_(vars.size()) {
    static_assert(sizeof(Var) == sizeof(VarRef) && alignof(Var) == alignof(VarRef));
  }
  template <class Range>
    requires requires(const Range& r) { std::span<const Var>(r); }
  VarSet(const Range& vars) noexcept : VarSet(std::span<const Var>(vars)) {}

  const VarRef* begin() const noexcept { return data_; }
  const VarRef* end() const noexcept { return data_ + size_; }
  size_t size() const noexcept { return size_; }

 private:
  const VarRef* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace engine
