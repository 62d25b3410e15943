// HandleTable: the objects behind the C API's opaque handles.
//
// A handle has 32 bits of generation, 4 of kind and 28 of slot index. It is never an address, so a null, stale or
// mistyped handle is refused instead of followed. Slots lie in chunks that double in size and are never freed: a lookup
// is three loads, and memory grows with the most handles alive at once, not with the number ever made.
//
// Threads:   every method is thread-safe and lock-free, so it also works in a forked child. Peek does not keep the
//            object alive; Retain does.
// Ownership: the table owns the object. The last Release destroys it before its slot can be used again.
// Order:     none between handles.
// Errors:    Create throws std::bad_alloc, or what the constructor throws; the other methods return null or false.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace engine::capi {

template <class T, uint32_t kKind>
class HandleTable {
  static_assert(kKind >= 1 && kKind <= 15, "kind 0 would make a null handle");

 public:
  constexpr HandleTable() = default;
  HandleTable(const HandleTable&) = delete;

  // Constructs an object, with one reference, and returns its handle.
  template <class... Args>
  uint64_t Create(Args&&... args) {
    const uint32_t index = TakeSlot();
    Slot& slot = *Find(index);
    // relaxed: only we have the slot; its generation was published with the free list, or is the initial one.
    const uint64_t generation = slot.state.load(std::memory_order_relaxed) >> 32;
    try {
      ::new (static_cast<void*>(slot.storage)) T(std::forward<Args>(args)...);
    } catch (...) {
      GiveSlot(slot, index);
      throw;
    }
    // release: publishes the object. Partner: the acquire in Peek and Retain.
    slot.state.store(generation << 32 | 1, std::memory_order_release);
    return HandleOf(generation, index);
  }

  // The object, or null if the handle is not live.
  T* Peek(uint64_t handle) const noexcept {
    Slot* slot = FindHandle(handle);
    if (!slot) return nullptr;
    // acquire: makes the object visible. Partner: the release in Create.
    return IsLive(slot->state.load(std::memory_order_acquire), handle) ? slot->object() : nullptr;
  }

  // Takes one more reference, which keeps the object alive; null if the handle is not live.
  T* Retain(uint64_t handle) noexcept {
    Slot* slot = FindHandle(handle);
    return slot && Step(*slot, handle, +1) ? slot->object() : nullptr;
  }

  // Gives one reference up; false if the handle is not live.
  bool Release(uint64_t handle) noexcept {
    Slot* slot = FindHandle(handle);
    if (!slot) return false;
    const uint64_t before = Step(*slot, handle, -1);
    if (!before) return false;
    if (Count(before) == 1) {  // ours was the last reference: nobody else can find the object any more
      slot->object()->~T();
      GiveSlot(*slot, static_cast<uint32_t>(handle & kIndexMask));
    }
    return true;
  }

  // Calls visit(handle, object) for every object that exists during the whole call; it may leave out others.
  template <class Visit>
  void ForEach(Visit&& visit) {
    const uint32_t made = std::min(made_.load(std::memory_order_relaxed), kSlots);  // relaxed: Find checks the chunk
    for (uint32_t index = 0; index < made; ++index) {
      const Slot* slot = Find(index);
      if (!slot) continue;
      const uint64_t state = slot->state.load(std::memory_order_relaxed);  // relaxed: Retain looks again
      const uint64_t handle = HandleOf(state >> 32, index);
      if (Count(state) == 0 || !Retain(handle)) continue;
      visit(handle, *Peek(handle));
      Release(handle);
    }
  }

 private:
  static constexpr int kIndexBits = 28;
  static constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;
  static constexpr uint32_t kFirstChunk = 64;  // chunk k holds kFirstChunk << k slots
  static constexpr int kChunks = kIndexBits - std::bit_width(kFirstChunk) + 1;
  static constexpr uint32_t kSlots = (kFirstChunk << kChunks) - kFirstChunk;
  static_assert(kSlots == 268435392);  // docs/limits.md
  static constexpr uint64_t kLastGeneration = 0xffffffff;

  struct Slot {
    std::atomic<uint64_t> state{uint64_t{1} << 32};  // generation << 32 | references; no references: no object
    std::atomic<uint32_t> next_free{0};              // index + 1; 0 ends the list
    alignas(T) std::byte storage[sizeof(T)];
    T* object() noexcept { return std::launder(reinterpret_cast<T*>(storage)); }
  };

  static constexpr uint64_t HandleOf(uint64_t generation, uint32_t index) noexcept {
    return generation << 32 | uint64_t{kKind} << kIndexBits | index;
  }
  static constexpr uint32_t Count(uint64_t state) noexcept { return static_cast<uint32_t>(state); }
  static constexpr bool IsLive(uint64_t state, uint64_t handle) noexcept {
    return state >> 32 == handle >> 32 && Count(state) != 0;
  }

  // Adds `by` references if the handle is live. Returns the state before, which is never 0, or 0 if it is not live.
  static uint64_t Step(Slot& slot, uint64_t handle, int by) noexcept {
    uint64_t state = slot.state.load(std::memory_order_acquire);
    do {
      if (!IsLive(state, handle)) return 0;
      // acq_rel: what each thread did with the object comes before its destruction. Partner: this line in the other
      // threads.
    } while (!slot.state.compare_exchange_weak(state, state + static_cast<uint64_t>(by), std::memory_order_acq_rel,
                                               std::memory_order_acquire));
    return state;
  }

  static std::pair<int, uint32_t> Locate(uint32_t index) noexcept {
    const uint32_t at = index + kFirstChunk;
    const int chunk = std::bit_width(at) - std::bit_width(kFirstChunk);
    return {chunk, at - (kFirstChunk << chunk)};
  }

  Slot* Find(uint32_t index) const noexcept {
    if (index >= kSlots) return nullptr;
    const auto [chunk, offset] = Locate(index);
    // acquire: makes the initial states of the slots visible. Partner: the release in TakeSlot.
    Slot* slots = chunks_[static_cast<size_t>(chunk)].load(std::memory_order_acquire);
    return slots ? slots + offset : nullptr;
  }

  Slot* FindHandle(uint64_t handle) const noexcept {
    if ((handle >> kIndexBits & 0xf) != kKind) return nullptr;
    return Find(static_cast<uint32_t>(handle & kIndexMask));
  }

  uint32_t TakeSlot() {
    // acquire: makes next_free and the new generation visible. Partner: the release in GiveSlot.
    uint64_t head = free_.load(std::memory_order_acquire);
    while (Count(head) != 0) {
      const uint32_t index = Count(head) - 1;
      // relaxed: stale if another thread takes the slot first; then the tag makes the exchange fail.
      const uint64_t next = Find(index)->next_free.load(std::memory_order_relaxed);
      if (free_.compare_exchange_weak(head, ((head >> 32) + 1) << 32 | next, std::memory_order_acquire)) return index;
    }
    // relaxed: the index only has to be unique.
    const uint32_t index = made_.fetch_add(1, std::memory_order_relaxed);
    if (index >= kSlots) {
      made_.fetch_sub(1, std::memory_order_relaxed);
      throw std::bad_alloc();
    }
    const int chunk = Locate(index).first;
    std::atomic<Slot*>& entry = chunks_[static_cast<size_t>(chunk)];
    if (!entry.load(std::memory_order_acquire)) {
      std::unique_ptr<Slot[]> slots(new Slot[size_t{kFirstChunk} << chunk]);
      Slot* none = nullptr;
      // release: publishes the slots' initial states. Partner: the acquire in Find.
      if (entry.compare_exchange_strong(none, slots.get(), std::memory_order_acq_rel)) slots.release();
    }
    return index;
  }

  void GiveSlot(Slot& slot, uint32_t index) noexcept {
    const uint64_t generation = slot.state.load(std::memory_order_relaxed) >> 32;
    if (generation == kLastGeneration) return;  // never reused, so that no stale handle can become live again
    slot.state.store((generation + 1) << 32, std::memory_order_relaxed);
    uint64_t head = free_.load(std::memory_order_relaxed);
    do {
      slot.next_free.store(Count(head), std::memory_order_relaxed);
      // release: publishes next_free and the generation. Partner: the acquire in TakeSlot.
    } while (!free_.compare_exchange_weak(head, ((head >> 32) + 1) << 32 | (index + 1), std::memory_order_release,
                                          std::memory_order_relaxed));
  }

  std::array<std::atomic<Slot*>, kChunks> chunks_ = {};
  std::atomic<uint64_t> free_{0};  // tag << 32 | index + 1; the tag counts changes, against ABA
  std::atomic<uint32_t> made_{0};  // slots ever handed out
};

}  // namespace engine::capi
