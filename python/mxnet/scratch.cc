#include "scratch.h"

#include <cstdlib>
#include <new>

#include "here.h"

namespace engine_mxnet {
namespace {

constexpr size_t kAligned = 64;  // bytes: as much as any vector instruction asks for

void* Grown(Scratch::Slot& slot, size_t bytes) {
  if (bytes <= slot.size) return slot.memory;
  std::free(slot.memory);
  slot.size = 0;
  slot.memory = std::aligned_alloc(kAligned, (bytes + kAligned - 1) / kAligned * kAligned);
  if (!slot.memory) throw std::bad_alloc();
  slot.size = bytes;
  return slot.memory;
}

}  // namespace

Scratch::~Scratch() {
  for (const Slot& slot : slots) std::free(slot.memory);
}

void* ScratchMemory(const void* space, size_t bytes) {
  Here& here = t_here;
  if (!here.scratch) [[unlikely]] {
    if (!here.ending) Here::Keep();
    here.scratch = new Scratch;
  }
  std::vector<Scratch::Slot>& slots = here.scratch->slots;
  for (size_t i = here.scratch_begin; i < here.scratch_end; ++i)
    if (slots[i].space == space) return Grown(slots[i], bytes);
  if (here.scratch_end == slots.size()) slots.push_back({});
  Scratch::Slot& slot = slots[here.scratch_end++];
  slot.space = space;
  return Grown(slot, bytes);
}

}  // namespace engine_mxnet
