// CheckedAtomic: std::atomic's interface for code under exploration. Each access asks the program, which makes it a
// scheduling point or not. Sequentially consistent: memory orders are accepted and ignored.
#pragma once

#include <atomic>
#include <type_traits>

#include "explorer.h"

namespace checker {

template <class T>
class CheckedAtomic {
 public:
  CheckedAtomic() = default;
  constexpr CheckedAtomic(T value) : value_(value) {}

  T load(std::memory_order = std::memory_order_seq_cst) const {
    Before(AccessKind::kLoad, T{});
    return After(AccessKind::kLoad, value_, value_);
  }
  void store(T desired, std::memory_order = std::memory_order_seq_cst) {
    Before(AccessKind::kStore, desired);
    Set(AccessKind::kStore, desired);
  }
  T exchange(T desired, std::memory_order = std::memory_order_seq_cst) {
    Before(AccessKind::kExchange, desired);
    return Set(AccessKind::kExchange, desired);
  }
  T fetch_add(T delta, std::memory_order = std::memory_order_seq_cst) {
    Before(AccessKind::kAdd, delta);
    return Set(AccessKind::kAdd, static_cast<T>(value_ + delta));
  }
  T fetch_sub(T delta, std::memory_order order = std::memory_order_seq_cst) {
    return fetch_add(static_cast<T>(T{0} - delta), order);
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order = std::memory_order_seq_cst,
                               std::memory_order = std::memory_order_seq_cst) {
    Before(AccessKind::kCompareExchange, desired);
    if (value_ == expected) {
      Set(AccessKind::kCompareExchange, desired);
      return true;
    }
    expected = After(AccessKind::kFailedCompareExchange, value_, value_);
    return false;
  }
  // Never fails spuriously: the protocols only retry, and the retry is the same state again.
  bool compare_exchange_weak(T& expected, T desired, std::memory_order success = std::memory_order_seq_cst,
                             std::memory_order failure = std::memory_order_seq_cst) {
    return compare_exchange_strong(expected, desired, success, failure);
  }

  // For the checker: the value, or its place, without an access.
  T peek() const { return value_; }
  const T* word() const { return &value_; }
  void poke(T value) { value_ = value; }

 private:
  void Before(AccessKind kind, T desired) const {
    Explorer::current().program().BeforeAccess(&value_, kind, static_cast<uint64_t>(desired));
  }
  T Set(AccessKind kind, T desired) {
    const T before = value_;
    value_ = desired;
    return After(kind, before, desired);
  }
  T After(AccessKind kind, T before, T after) const {
    Explorer& explorer = Explorer::current();
    explorer.Record({.where = &value_,
                     .before = static_cast<uint64_t>(before),
                     .after = static_cast<uint64_t>(after),
                     .kind = kind});
    explorer.program().AfterAccess(&value_, kind, static_cast<uint64_t>(before), static_cast<uint64_t>(after));
    return before;
  }

  T value_;
};

}  // namespace checker
