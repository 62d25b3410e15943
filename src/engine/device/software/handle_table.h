// HandleTable: what a handle stands for. A handle is a slot and the number of its use, so that a stale one is noticed
// instead of followed.
//
// Threads:   none of its own; the owner locks.
// Ownership: the table owns what it holds.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace engine::detail {

template <class T>
class HandleTable {
 public:
  // `kind` keeps handles of different tables apart: a stream's handle is never an event's. `owner` does so for tables of
  // one kind: uses count from there.
  explicit HandleTable(uint8_t kind, uint16_t owner = 0) noexcept
      : kind_(kind), first_use_(uintptr_t{owner} << 20 | 1) {}

  void* Add(std::unique_ptr<T> value) {
    if (free_.empty()) {
      // First, so that neither this nor Remove can fail half-way.
      if (free_.capacity() <= slots_.size()) free_.reserve(2 * slots_.size() + 8);
      slots_.push_back({nullptr, first_use_});
      free_.push_back(static_cast<uint32_t>(slots_.size() - 1));
    }
    const uint32_t at = free_.back();
    free_.pop_back();
    slots_[at].value = std::move(value);
    return Encode(at, slots_[at].use);
  }
  T* Find(const void* handle) const noexcept {
    const auto bits = reinterpret_cast<uintptr_t>(handle);
    const size_t at = (bits >> 4) & kMaxSlot;
    if ((bits & 15) != kind_ || at >= slots_.size() || slots_[at].use != bits >> 28) return nullptr;
    return slots_[at].value.get();
  }
  // Null if there is none.
  std::unique_ptr<T> Remove(const void* handle) {
    if (!Find(handle)) return nullptr;
    const auto at = static_cast<uint32_t>((reinterpret_cast<uintptr_t>(handle) >> 4) & kMaxSlot);
    ++slots_[at].use;
    free_.push_back(at);
    return std::move(slots_[at].value);
  }

 private:
  struct Slot {
    std::unique_ptr<T> value;
    uintptr_t use;
  };
  static constexpr size_t kMaxSlot = 0xffffff;
  void* Encode(uint32_t at, uintptr_t use) const noexcept {
    return reinterpret_cast<void*>(use << 28 | static_cast<uintptr_t>(at) << 4 | kind_);
  }
  const uint8_t kind_;  // 1 to 15
  const uintptr_t first_use_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace engine::detail
