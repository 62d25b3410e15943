// Function: a std::function as libmxnet.so 1.9.1 has it inside.
//
// The wheel was built by GCC 4.8, whose std::function calls what it holds with its arguments by value; from GCC 5 on they are
// passed by reference. The rest of its layout is that of today, and so is that of std::vector and std::shared_ptr.
//
// Threads:   as of a std::function.
// Ownership: owns what it calls; moving moves that.
#pragma once

#include <cstddef>
#include <functional>
#include <new>
#include <type_traits>
#include <utility>

namespace engine_mxnet::abi {

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
    if (manage_) manage_(held_, other.held_, kClone);
  }
  ~Function() {
    if (manage_) manage_(held_, held_, kDestroy);
  }

  explicit operator bool() const noexcept { return manage_ != nullptr; }
  void operator()(Args... args) const {
    if (!manage_) throw std::bad_function_call();
    invoke_(held_, args...);
  }

 private:
  union Held {
    void* object;
    std::byte bytes[16];  // small callables lie here
  };
  enum Operation { kTypeInfo, kPointer, kClone, kDestroy };

  template <class F>
  static constexpr bool kSmall = sizeof(F) <= sizeof(Held) && std::is_trivially_copyable_v<F>;
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
  static bool Manage(Held& to, const Held& from, Operation operation) {
    if (operation == kClone) Put(to, std::as_const(In<F>(from)));
    if (operation == kDestroy && !kSmall<F>) delete &In<F>(to);
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

  Held held_{};
  bool (*manage_)(Held&, const Held&, Operation) = nullptr;
  void (*invoke_)(const Held&, Args...) = nullptr;
};

}  // namespace engine_mxnet::abi
