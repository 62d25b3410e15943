// Function: a std::function as libmxnet.so 1.9.1 has it inside.
//
// The wheel was built by GCC 4.8, whose std::function calls what it holds with its arguments by value; from GCC 5 on they are
// passed by reference. It keeps pointers in itself, and anything else on the heap. The rest of its layout is that of today, and so is
// that of std::vector and std::shared_ptr.
//
// Threads:   as of a std::function.
// Ownership: owns what it calls; moving moves that.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <new>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace engine_mxnet::abi {

// What a function has in itself.
union Held {
  void* object;
  std::byte bytes[16];
};

// What MXEnginePushAsync and MXEnginePushSync call: a function of C and its argument, which the caller frees by itself.
template <class... Args>
struct CFunction {
  void operator()(Args... args) const { invoke({.object = const_cast<void**>(words)}, args...); }
  void* words[2];
  void (*invoke)(const Held&, Args...);
};

// What is left of a function that is not called any more: it can only be destroyed.
class Remains {
 public:
  enum Operation { kTypeInfo, kPointer, kClone, kDestroy };
  using Manager = bool (*)(Held&, const Held&, Operation);

  Remains() noexcept = default;
  Remains(const Held& held, Manager manage) noexcept : held_(held), manage_(manage) {}
  Remains(Remains&& other) noexcept : held_(other.held_), manage_(std::exchange(other.manage_, nullptr)) {}
  Remains& operator=(Remains&& other) noexcept {
    Destroy();
    held_ = other.held_;
    manage_ = std::exchange(other.manage_, nullptr);
    return *this;
  }
  ~Remains() { Destroy(); }

 private:
  void Destroy() noexcept {
    if (Manager const manage = std::exchange(manage_, nullptr)) manage(held_, held_, kDestroy);
  }
  Held held_{};
  Manager manage_ = nullptr;
};

// Whether that is the type's name: the first closure type in one of these two. The second one has a deleter for the argument.
inline bool IsCFunction(std::string_view type) noexcept {
  return (type.starts_with("Z17MXEnginePushAsyncEUl") || type.starts_with("Z16MXEnginePushSyncEUl")) &&
         type.ends_with("EE_");
}

template <class... Args>
class Function {
 public:
  Function() noexcept = default;
  template <class F>
    requires(!std::is_same_v<std::decay_t<F>, Function> && std::is_invocable_v<std::decay_t<F>&, Args...>)
  Function(F&& fn)  // NOLINT: implicit, as of a std::function
      : manage_(&Manage<std::decay_t<F>>), invoke_(&Invoke<std::decay_t<F>>) {
    Put(held_, std::forward<F>(fn));
  }
  Function(Function&& other) noexcept
      : held_(other.held_), manage_(std::exchange(other.manage_, nullptr)), invoke_(other.invoke_) {}
  Function& operator=(Function&& other) noexcept {
    Swap(other);
    return *this;
  }
  Function(const Function& other) : manage_(other.manage_), invoke_(other.invoke_) {
    if (manage_) manage_(held_, other.held_, Remains::kClone);
  }
  ~Function() { Leave(); }

  // Empties it without destroying what it holds.
  Remains Leave() noexcept { return {held_, std::exchange(manage_, nullptr)}; }

  explicit operator bool() const noexcept { return manage_ != nullptr; }
  void operator()(Args... args) const {
    if (!manage_) throw std::bad_function_call();
    invoke_(held_, args...);
  }

  // Takes a CFunction out, and destroys the rest: so the thread that made it gets its memory back at once. If a worker gave it
  // back, the next function would lie in lines of that worker's cache. False, and nothing has changed, for any other function.
  bool TakeOut(CFunction<Args...>& out) noexcept {
    if (!manage_) return false;
    // relaxed: it publishes nothing; all closures of that type have this manager.
    if (manage_ != c_function_.load(std::memory_order_relaxed)) {
      Held type{};
      manage_(type, held_, Remains::kTypeInfo);
      const auto* const info = static_cast<const std::type_info*>(type.object);
      if (!info || !IsCFunction(info->name())) [[likely]]
        return false;
      c_function_.store(manage_, std::memory_order_relaxed);
    }
    void* const* const words = static_cast<void**>(held_.object);
    out = {{words[0], words[1]}, invoke_};
    Leave();
    return true;
  }

 private:
  using Manager = Remains::Manager;

  template <class F>
  static constexpr bool kSmall = std::is_pointer_v<F>;
  template <class F>
  static void Put(Held& held, F&& fn) {
    using Own = std::decay_t<F>;
    if constexpr (kSmall<Own>) {
      ::new (held.bytes) Own(std::forward<F>(fn));
    } else {
      held.object = new Own(std::forward<F>(fn));
    }
  }
  template <class F>
  static F& In(const Held& held) {
    if constexpr (kSmall<F>)
      return *std::launder(reinterpret_cast<F*>(const_cast<std::byte*>(held.bytes)));
    else
      return *static_cast<F*>(held.object);
  }
  template <class F>
  static bool Manage(Held& to, const Held& from, Remains::Operation operation) {
    if (operation == Remains::kTypeInfo) to.object = const_cast<std::type_info*>(&typeid(F));
    if (operation == Remains::kClone) Put(to, std::as_const(In<F>(from)));
    if (operation == Remains::kDestroy && !kSmall<F>) delete &In<F>(to);
    return false;
  }
  template <class F>
  static void Invoke(const Held& held, Args... args) {
    In<F>(held)(args...);
  }
  void Swap(Function& other) noexcept {
    std::swap(held_, other.held_);
    std::swap(manage_, other.manage_);
    std::swap(invoke_, other.invoke_);
  }

  static inline constinit std::atomic<Manager> c_function_ = nullptr;  // the one of CFunctions, once one was seen
  Held held_{};
  Manager manage_ = nullptr;
  void (*invoke_)(const Held&, Args...) = nullptr;
};

}  // namespace engine_mxnet::abi
