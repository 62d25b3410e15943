// SlotPool: hands out the slots of an array, and knows who owns each. Plain bytes, part of the explored state.
//
// A freed slot goes out again before any fresh one, the last freed first: so that a stale pointer meets a new owner
// as soon as it can. A fresh slot is the home of its taker, so that a race for fresh slots makes no new states.
//
// A slot is private to the thread that took it until its address leaves that thread. Nobody else can mean to touch it
// before, so accesses to it need no scheduling point, and an access by another thread is a stale pointer.
#pragma once

#include <cstdint>

namespace checker {

template <int kSlots>
class SlotPool {
 public:
  // `owner` is remembered for traces. Returns the slot.
  int Take(int home, int owner, int thread) {
    const int slot = freed_ ? free_[--freed_] : home;
    free_[freed_] = 0;
    owner_[slot] = static_cast<uint8_t>(owner + 1);
    private_to_[slot] = static_cast<uint8_t>(thread + 1);
    return slot;
  }
  void Free(int slot) {
    owner_[slot] = private_to_[slot] = 0;
    free_[freed_++] = static_cast<uint8_t>(slot);
  }
  void PublishAllOf(int thread) {
    for (uint8_t& p : private_to_)
      if (p == thread + 1) p = 0;
  }
  bool taken(int slot) const { return owner_[slot] != 0; }
  int owner(int slot) const { return owner_[slot] - 1; }  // -1: free
  bool private_to(int slot, int thread) const { return private_to_[slot] == thread + 1; }
  bool MayTouch(int slot, int thread) const {
    return taken(slot) && (private_to_[slot] == 0 || private_to(slot, thread));
  }

 private:
  uint8_t owner_[kSlots];
  uint8_t private_to_[kSlots];
  uint8_t free_[kSlots + 1];
  uint8_t freed_;
};

}  // namespace checker
