#include "arena.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace engine::detail {
namespace {

std::byte* NewSlab(size_t bytes) {
  auto* memory = static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64}));
  std::memset(memory, 0, bytes);  // pages are touched here, not on the push path; state 0 reads as free
  return memory;
}

}  // namespace

Arena::Arena(size_t max_pending)
    : magazine_(static_cast<uint32_t>(std::clamp<size_t>(max_pending / 8, 1, tuning::kMagazine))) {}

Arena::~Arena() {
  for (const Slab& slab : slabs_) ::operator delete(slab.memory, std::align_val_t{64});
}

FreeBlock* Arena::Take(uint32_t cls) {
  MutexLock lock(mu_);
  FreeBlock* magazine = depot_[cls];
  if (magazine) {
    depot_[cls] = magazine->next_magazine;
  } else {
    magazine = Carve(cls);
  }
  if (cls >= kFirstOpClass) outstanding_.fetch_add(magazine_, std::memory_order_relaxed);
  return magazine;
}

FreeBlock* Arena::Carve(uint32_t cls) {
  FreeBlock* list = nullptr;
  for (uint32_t n = 0; n < magazine_; ++n) {
    if (FreeBlock* block = loose_[cls]) {
      loose_[cls] = block->next;
      --loose_count_[cls];
      block->next = list;
      list = block;
      continue;
    }
    Slab& open = open_[cls];
    const size_t size = size_t{64} * cls;
    const auto per_slab = static_cast<uint32_t>(tuning::kSlabBytes / size);
    if (!open.memory || open.blocks == per_slab) {
      slabs_.reserve(slabs_.size() + 1);
      open = {NewSlab(per_slab * size), cls, 0};
      slabs_.push_back({open.memory, cls, per_slab});
      slab_bytes_.fetch_add(per_slab * size, std::memory_order_relaxed);
      slab_allocations_.fetch_add(1, std::memory_order_relaxed);
    }
    auto* block = reinterpret_cast<FreeBlock*>(open.memory + size * open.blocks++);
    block->next = list;
    list = block;
  }
  return list;
}

void Arena::Put(uint32_t cls, FreeBlock* magazine, uint32_t count) {
  MutexLock lock(mu_);
  if (cls >= kFirstOpClass) outstanding_.fetch_sub(count, std::memory_order_relaxed);
  if (count == magazine_) {
    magazine->next_magazine = depot_[cls];
    depot_[cls] = magazine;
    return;
  }
  while (magazine) {
    FreeBlock* next = magazine->next;
    magazine->next = loose_[cls];
    loose_[cls] = magazine;
    magazine = next;
    if (++loose_count_[cls] < magazine_) continue;
    loose_[cls]->next_magazine = depot_[cls];
    depot_[cls] = std::exchange(loose_[cls], nullptr);
    loose_count_[cls] = 0;
  }
}

void Arena::ForEachBlock(uint32_t from, const std::function<void(void*)>& visit) {
  MutexLock lock(mu_);
  for (const Slab& slab : slabs_) {
    if (slab.cls < from) continue;
    for (uint32_t i = 0; i < slab.blocks; ++i) visit(slab.memory + size_t{64} * slab.cls * i);
  }
}

void BlockCache::Refill(uint32_t cls) {
  Loaded& l = loaded_[cls];
  l.list = l.spare ? std::exchange(l.spare, nullptr) : arena_.Take(cls);
  l.count = arena_.magazine();
}

void BlockCache::MakeRoom(uint32_t cls) {
  Loaded& l = loaded_[cls];
  if (l.count > arena_.magazine()) {  // grown for an op with very many reads
    arena_.Put(cls, l.list, l.count);
  } else if (l.spare) {
    arena_.Put(cls, std::exchange(l.spare, l.list), arena_.magazine());
  } else {
    l.spare = l.list;
  }
  l.list = nullptr;
  l.count = 0;
}

void BlockCache::Grow(uint32_t cls) {
  Loaded& l = loaded_[cls];
  FreeBlock* more = l.spare ? std::exchange(l.spare, nullptr) : arena_.Take(cls);
  FreeBlock* last = more;
  while (last->next) last = last->next;
  last->next = l.list;
  l.list = more;
  l.count += arena_.magazine();
}

void BlockCache::Flush() {
  for (uint32_t cls = 0; cls < kClasses; ++cls) {
    Loaded& l = loaded_[cls];
    if (l.spare) arena_.Put(cls, std::exchange(l.spare, nullptr), arena_.magazine());
    if (l.list) arena_.Put(cls, l.list, l.count);
    l.list = nullptr;
    l.count = 0;
  }
}

}  // namespace engine::detail
