// Value: one object of any movable type. Values flow between the nodes of a graph during one run.
//
// Threads:   as the object that it holds; the engine orders the nodes that touch it.
// Ownership: moved, never copied. An object of up to 48 bytes lies inside the Value, a larger one in one heap block.
// Errors:    asking for another type than the one held throws UsageError, which names both types.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace engine {

namespace detail {
struct ValueType {
  const std::type_info* info;
  void (*move)(void* to, void* from) noexcept;  // leaves nothing at `from`
  void (*destroy)(void* at) noexcept;           // null: nothing to do
  size_t (*bytes)(const void* at);
  bool boxed;
};
// How large an object is: what its own bytes() says, or else the size of its elements, or else the size of its type.
template <class T>
size_t BytesOf(const T& object) {
  if constexpr (requires {
                  { object.bytes() } -> std::convertible_to<size_t>;
                }) {
    return object.bytes();
  } else if constexpr (requires { object.size() * sizeof(*object.data()); }) {
    return sizeof(T) + object.size() * sizeof(*object.data());
  } else {
    return sizeof(T);
  }
}
[[noreturn]] void ThrowWrongType(const std::type_info& wanted, const std::type_info* held);
}  // namespace detail

class alignas(64) Value {
 public:
  static constexpr size_t kInline = 48;

  Value() noexcept = default;
  Value(Value&& other) noexcept { Adopt(other); }
  Value& operator=(Value&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    Adopt(other);
    return *this;
  }
  ~Value() { Reset(); }

  template <class T>
    requires(!std::is_same_v<std::decay_t<T>, Value>)
  Value(T&& object) {  // NOLINT: implicit by design, so that kernels and callers write the object itself
    Emplace<std::decay_t<T>>(std::forward<T>(object));
  }

  template <class T, class... Args>
  T& Emplace(Args&&... args) {
    Reset();
    T* made;
    if constexpr (kFits<T>) {
      made = ::new (static_cast<void*>(store_)) T(std::forward<Args>(args)...);
    } else {
      made = new T(std::forward<Args>(args)...);
      ::new (static_cast<void*>(store_)) T*(made);
    }
    type_ = &kType<T>;
    return *made;
  }
  template <class T>
  T& Get() {
    if (T* held = If<T>()) [[likely]]
      return *held;
    detail::ThrowWrongType(typeid(T), type());
  }
  // The object, or null if the Value is empty or holds another type.
  template <class T>
  T* If() noexcept {
    // Two shared libraries may have a table each for the same type, so a different table alone does not mean a
    // different type.
    if (type_ != &kType<T> && (!type_ || *type_->info != typeid(T))) return nullptr;
    return type_->boxed ? *std::launder(reinterpret_cast<T**>(store_)) : std::launder(reinterpret_cast<T*>(store_));
  }
  template <class T>
  T Take() {
    T taken(std::move(Get<T>()));
    Reset();
    return taken;
  }
  void Reset() noexcept {
    if (!type_) return;
    if (type_->destroy) type_->destroy(store_);
    type_ = nullptr;
  }
  explicit operator bool() const noexcept { return type_ != nullptr; }
  const std::type_info* type() const noexcept { return type_ ? type_->info : nullptr; }  // null: empty
  // The size of the object (detail::BytesOf); 0 if the Value is empty.
  size_t bytes() const { return type_ ? type_->bytes(store_) : 0; }

 private:
  template <class T>
  static constexpr bool kFits = sizeof(T) <= kInline && alignof(T) <= 16 && std::is_nothrow_move_constructible_v<T>;
  template <class T>
  struct Ops {
    static void Move(void* to, void* from) noexcept {
      if constexpr (kFits<T>) {
        T* source = std::launder(static_cast<T*>(from));
        ::new (to) T(std::move(*source));
        source->~T();
      } else {
        ::new (to) T*(*std::launder(static_cast<T**>(from)));
      }
    }
    static void Destroy(void* at) noexcept {
      if constexpr (kFits<T>) {
        std::launder(static_cast<T*>(at))->~T();
      } else {
        delete *std::launder(static_cast<T**>(at));
      }
    }
    static size_t Bytes(const void* at) {
      if constexpr (kFits<T>) {
        return detail::BytesOf(*std::launder(static_cast<const T*>(at)));
      } else {
        return detail::BytesOf(**std::launder(static_cast<T* const*>(at)));
      }
    }
  };
  template <class T>
  static constexpr detail::ValueType kType{&typeid(T), &Ops<T>::Move,
                                           kFits<T>&& std::is_trivially_destructible_v<T> ? nullptr : &Ops<T>::Destroy,
                                           &Ops<T>::Bytes, !kFits<T>};

  void Adopt(Value& other) noexcept {
    type_ = std::exchange(other.type_, nullptr);
    if (type_) type_->move(store_, other.store_);
  }
  alignas(16) std::byte store_[kInline];
  const detail::ValueType* type_ = nullptr;
};
static_assert(sizeof(Value) == 64);

}  // namespace engine
