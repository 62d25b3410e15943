#include "device/software/software_memory.h"

#include <algorithm>
#include <bit>

namespace engine::detail {
namespace {
constexpr size_t kSmallest = 256;  // CUDA's alignment
uintptr_t Address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }
}  // namespace

void* SoftwareMemory::Allocate(size_t bytes, const Lane* lane, bool* from_driver) {
  *from_driver = false;
  if (bytes > limit_) return nullptr;
  const size_t size = std::bit_ceil(std::max(bytes, kSmallest));
  Class& of = classes_[size];
  std::vector<Block*>& pool = of.free;
  for (size_t i = pool.size(); i-- > 0;) {
    Block* block = pool[i];
    if (block->freed_at.lane != lane && !Reached(block->freed_at)) continue;
    pool.erase(pool.begin() + static_cast<std::ptrdiff_t>(i));
    block->free = false;
    return block->memory.get();
  }
  *from_driver = true;
  if (taken_ + size > limit_) Trim(0);
  if (taken_ + size > limit_) return nullptr;
  if (pool.capacity() <= of.blocks) pool.reserve(2 * of.blocks + 4);
  Block block{std::make_unique<std::byte[]>(size), size};
  void* memory = block.memory.get();
  device_.emplace(Address(memory), std::move(block));
  taken_ += size;
  ++of.blocks;
  return memory;
}

size_t SoftwareMemory::BlockBytes(const void* memory) const {
  const auto it = device_.find(Address(memory));
  return it == device_.end() || it->second.free ? 0 : it->second.bytes;
}

void SoftwareMemory::Free(void* memory, Marker at) noexcept {
  Block& block = device_.find(Address(memory))->second;
  block.free = true;
  block.freed_at = at;
  classes_.find(block.bytes)->second.free.push_back(&block);
}

void SoftwareMemory::Trim(size_t keep) {
  for (auto& [size, of] : classes_) {
    std::vector<Block*>& pool = of.free;
    for (size_t i = pool.size(); i-- > 0 && taken_ > keep;) {
      Block* block = pool[i];
      if (!Reached(block->freed_at)) continue;  // work that is on its way may still touch it
      pool.erase(pool.begin() + static_cast<std::ptrdiff_t>(i));
      taken_ -= size;
      --of.blocks;
      device_.erase(Address(block->memory.get()));
    }
  }
}

void* SoftwareMemory::AllocatePinned(size_t bytes) {
  Block block{std::make_unique<std::byte[]>(bytes), bytes};
  void* memory = block.memory.get();
  pinned_.emplace(Address(memory), std::move(block));
  return memory;
}

bool SoftwareMemory::FreePinned(void* memory) { return pinned_.erase(Address(memory)) == 1; }

MemoryKind SoftwareMemory::KindOf(const void* memory) const {
  if (IsDevice(memory, 1)) return MemoryKind::kDevice;
  return IsPinned(memory, 1) ? MemoryKind::kPinned : MemoryKind::kPageable;
}

bool SoftwareMemory::Within(const Blocks& blocks, const void* memory, size_t bytes) {
  const uintptr_t at = Address(memory);
  auto it = blocks.upper_bound(at);
  if (it == blocks.begin()) return false;
  --it;
  return !it->second.free && at - it->first < it->second.bytes && bytes <= it->second.bytes - (at - it->first);
}

}  // namespace engine::detail
