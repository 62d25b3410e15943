#include "base/arena.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

namespace engine::detail {
namespace {

std::byte* NewSlab(size_t bytes) {
  auto* memory = static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64}));
  std::memset(memory, 0, bytes);  // touches the pages here, not on the push path; state 0 means free
  return memory;
}

}  // namespace

Arena::Arena(BlockKind kind, size_t max_pending)
    : kind_(kind), magazine_(static_cast<uint32_t>(std::clamp<size_t>(max_pending / 8, 1, tuning::kMagazine))) {}

Arena::~Arena() {
  for (const Slab& slab : slabs_) ::operator delete(slab.memory, std::align_val_t{64});
  for (void* magazine : magazines_) ::operator delete(magazine);
  for (const LargeBlock& large : large_) ::operator delete(large.block, std::align_val_t{64});
}

void* Arena::TakeLarge(size_t bytes, uint32_t* cls) {
  const auto log = static_cast<uint32_t>(std::bit_width(bytes - 1));
  MutexLock lock(mu_);
  std::vector<void*>& free = free_large_[log];
  void* block;
  if (!free.empty()) {
    block = free.back();
    free.pop_back();
    CheckPoison(kind_, kLargeClass + log, block);
  } else {
    if (large_.size() == large_.capacity()) large_.reserve(2 * large_.size() + 16);
    free.reserve(large_.capacity());  // so that giving this block back cannot fail
    block = ::operator new(size_t{1} << log, std::align_val_t{64});
    std::memset(block, 0, 64);  // state 0 reads as free
    large_.push_back({block, kLargeClass + log});
  }
  *cls = kLargeClass + log;
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  return block;
}

void Arena::ReturnLarge(uint32_t cls, void* block) {
  PoisonBlock(kind_, cls, block);
  outstanding_.fetch_sub(1, std::memory_order_relaxed);
  MutexLock lock(mu_);
  free_large_[cls - kLargeClass].push_back(block);
}

Magazine* Arena::MakeMagazine(uint32_t capacity) {
  if (magazines_.size() == magazines_.capacity()) magazines_.reserve(2 * magazines_.size() + 64);
  auto* m = static_cast<Magazine*>(::operator new(sizeof(Magazine) + (capacity - 1) * sizeof(void*)));
  magazines_.push_back(m);
  usual_ += capacity == magazine_;
  m->next = nullptr;
  m->count = 0;
  m->capacity = capacity;
  return m;
}

Magazine* Arena::EmptyMagazine() {
  if (!empty_) return MakeMagazine(magazine_);
  Magazine* m = empty_;
  empty_ = m->next;
  return m;
}

// Its capacity comes from a power of two, so that few sizes serve all requests.
Magazine* Arena::LargeMagazine(uint32_t n) {
  Magazine** at = &empty_large_;
  while (*at && (*at)->capacity < n) at = &(*at)->next;
  return *at ? std::exchange(*at, (*at)->next) : MakeMagazine(std::bit_ceil(n + magazine_));
}

// There must be enough magazines even if all blocks lie in full ones, each cache has two, and each class has a broken
// one. They are made before the blocks or the cache that need them: if memory is refused, nothing has changed, and
// giving a block back never needs memory.
void Arena::MakeEnough(size_t blocks, size_t users) {
  while (usual_ < blocks / magazine_ + 4 * users) {
    Magazine* m = MakeMagazine(magazine_);
    m->next = empty_;
    empty_ = m;
  }
}

void Arena::AddUser() {
  MutexLock lock(mu_);
  MakeEnough(blocks_, users_ + 1);
  ++users_;
}

// Loose blocks, for which no cache had room, form a list through their last words.
static void*& NextLoose(void* block, uint32_t cls) {
  return *reinterpret_cast<void**>(static_cast<std::byte*>(block) + BlockBytes(cls) - sizeof(void*));
}

void Arena::KeepLoose(uint32_t cls, void* block) {
  MutexLock lock(mu_);
  if (cls >= kFirstOpClass) outstanding_.fetch_sub(1, std::memory_order_relaxed);
  NextLoose(block, cls) = std::exchange(loose_[cls], block);
}

void* Arena::Carve(uint32_t cls) {
  if (void* const block = loose_[cls]) {
    loose_[cls] = NextLoose(block, cls);
    PoisonBlock(kind_, cls, block);
    return block;
  }
  Slab& open = open_[cls];
  const size_t size = size_t{64} * cls;
  const auto per_slab = static_cast<uint32_t>(tuning::kSlabBytes / size);
  if (!open.memory || open.blocks == per_slab) {
    if (slabs_.size() == slabs_.capacity()) slabs_.reserve(2 * slabs_.size() + 16);
    MakeEnough(blocks_ + per_slab, users_);
    open = {NewSlab(per_slab * size), cls, 0};
    slabs_.push_back({open.memory, cls, per_slab});
    slab_bytes_.fetch_add(per_slab * size, std::memory_order_relaxed);
    slab_allocations_.fetch_add(1, std::memory_order_relaxed);
    blocks_ += per_slab;
  }
  void* const block = open.memory + size * open.blocks++;
  PoisonBlock(kind_, cls, block);
  return block;
}

// Takes one block, for a magazine of another capacity.
void* Arena::Take(uint32_t cls) {
  Magazine*& broken = broken_[cls];
  if (!broken && full_[cls]) {
    broken = full_[cls];
    full_[cls] = broken->next;
  }
  if (!broken) return Carve(cls);
  void* block = broken->block[--broken->count];
  if (broken->count == 0) {
    broken->next = empty_;
    empty_ = std::exchange(broken, nullptr);
  }
  return block;
}

Magazine* Arena::Full(uint32_t cls) {
  if (Magazine* m = full_[cls]) {
    full_[cls] = m->next;
    return m;
  }
  Magazine* m = std::exchange(broken_[cls], nullptr);
  if (!m) m = EmptyMagazine();
  // Filled from the end, so that blocks leave in the order of their addresses, which hardware prefetchers follow.
  uint32_t from = magazine_;
  try {
    for (; from > m->count; --from) m->block[from - 1] = Carve(cls);
  } catch (...) {  // gives back what was cut so far
    m->count = static_cast<uint32_t>(std::copy(m->block + from, m->block + magazine_, m->block + m->count) - m->block);
    Keep(cls, m);
    throw;
  }
  m->count = magazine_;
  return m;
}

void Arena::Keep(uint32_t cls, Magazine* m) {
  const bool usual = m->capacity == magazine_;
  const auto keep_full = [&](Magazine* full) REQUIRES(mu_) {
    full->next = full_[cls];
    full_[cls] = full;
  };
  if (usual && m->count == magazine_) return keep_full(m);
  while (m->count != 0) {
    Magazine*& broken = broken_[cls];
    if (!broken && usual) {
      broken = m;
      return;
    }
    if (!broken) broken = EmptyMagazine();
    broken->block[broken->count++] = m->block[--m->count];
    if (broken->count == magazine_) keep_full(std::exchange(broken, nullptr));
  }
  if (usual) {
    m->next = empty_;
    empty_ = m;
  } else {
    m->next = empty_large_;
    empty_large_ = m;
  }
}

Magazine* Arena::TakeFull(uint32_t cls, Magazine* empty) {
  MutexLock lock(mu_);
  Magazine* m = Full(cls);
  if (cls >= kFirstOpClass) outstanding_.fetch_add(m->count, std::memory_order_relaxed);
  if (empty) Keep(cls, empty);
  return m;
}

Magazine* Arena::TakeEmpty(uint32_t cls, Magazine* full) {
  MutexLock lock(mu_);
  Magazine* const m = EmptyMagazine();
  if (full) {
    if (cls >= kFirstOpClass) outstanding_.fetch_sub(full->count, std::memory_order_relaxed);
    Keep(cls, full);
  }
  return m;
}

void Arena::Put(uint32_t cls, Magazine* m) {
  MutexLock lock(mu_);
  if (cls >= kFirstOpClass) outstanding_.fetch_sub(m->count, std::memory_order_relaxed);
  Keep(cls, m);
}

void Arena::Enlarge(uint32_t cls, Magazine*& held, uint32_t n) {
  MutexLock lock(mu_);
  if (!held || held->capacity < n) {
    Magazine* const m = LargeMagazine(n);
    if (held) {
      std::copy(held->block, held->block + held->count, m->block);
      m->count = std::exchange(held->count, 0);
      Keep(cls, held);
    }
    held = m;
  }
  while (held->count < n) {
    held->block[held->count] = Take(cls);
    ++held->count;
    if (cls >= kFirstOpClass) outstanding_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Arena::ForEachBlock(uint32_t from, uint32_t to, const std::function<void(void*, uint32_t)>& visit) {
  MutexLock lock(mu_);
  const auto wanted = [=](uint32_t cls) { return from <= cls && cls < to; };
  for (const Slab& slab : slabs_)
    for (uint32_t i = 0; wanted(slab.cls) && i < slab.blocks; ++i)
      visit(slab.memory + BlockBytes(slab.cls) * i, slab.cls);
  for (const LargeBlock& large : large_)
    if (wanted(large.cls)) visit(large.block, large.cls);  // mutant: large_blocks_unlisted
}

BlockCache::Loaded& BlockCache::Known(uint32_t cls) {
  Loaded& l = loaded_[cls];
  if (!l.known) {
    arena_.AddUser();
    l.known = true;
  }
  return l;
}

Magazine* BlockCache::Refill(uint32_t cls) {
  Loaded& l = Known(cls);
  if (l.spare && l.spare->count) {
    std::swap(l.now, l.spare);
  } else {
    l.now = arena_.TakeFull(cls, l.now);
  }
  return l.now;
}

// Null: this cache holds no blocks of the class yet, and there is no memory to start.
Magazine* BlockCache::MakeRoom(uint32_t cls) noexcept try {
  Loaded& l = Known(cls);
  if (l.now && l.spare && l.spare->count == 0) {
    std::swap(l.now, l.spare);
  } else {
    Magazine* const empty = arena_.TakeEmpty(cls, l.spare);
    l.spare = std::exchange(l.now, empty);
  }
  return l.now;
} catch (const std::bad_alloc&) {
  return nullptr;
}

void BlockCache::Enlarge(uint32_t cls, uint32_t n) {
  Loaded& l = Known(cls);
  if (n <= arena_.magazine()) {  // as Refill, but the blocks that are left stay in the spare
    if (!l.spare || l.spare->count < n) {
      if (l.spare) arena_.Put(cls, std::exchange(l.spare, nullptr));
      l.spare = arena_.TakeFull(cls, nullptr);
    }
    std::swap(l.now, l.spare);
  } else {
    arena_.Enlarge(cls, l.now, n);
  }
}

void BlockCache::Flush() {
  for (uint32_t cls = 0; cls < kClasses; ++cls) {
    Loaded& l = loaded_[cls];
    for (Magazine** m : {&l.now, &l.spare})
      if (*m) arena_.Put(cls, std::exchange(*m, nullptr));
  }
}

}  // namespace engine::detail
