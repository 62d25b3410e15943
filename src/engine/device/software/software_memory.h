// SoftwareMemory: the memory of a software device, and the pinned memory that it knows of.
//
// Stream-ordered: a freed block is handed out again to its own lane at once, and to others when the device has come
// past the free. Blocks are of powers of two, and kept.
//
// Threads:   none of its own; the device locks.
// Ownership: owns all blocks.
// Errors:    bad_alloc, with nothing changed. Free and Trim need no memory.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "device/software/executor.h"

namespace engine::detail {

class SoftwareMemory {
 public:
  explicit SoftwareMemory(size_t limit) : limit_(limit) {}

  // Null: over the limit. `from_driver`: the pool had nothing.
  void* Allocate(size_t bytes, const Lane* lane, bool* from_driver);
  // How many bytes the block has; 0 if `memory` is not the begin of a block in use.
  size_t BlockBytes(const void* memory) const;
  void Free(void* memory, Marker at) noexcept;
  void Trim(size_t keep);

  void* AllocatePinned(size_t bytes);
  bool FreePinned(void* memory);

  MemoryKind KindOf(const void* memory) const;
  // Whether all of it lies in one block of device memory, or of pinned memory.
  bool IsDevice(const void* memory, size_t bytes) const { return Within(device_, memory, bytes); }
  bool IsPinned(const void* memory, size_t bytes) const { return Within(pinned_, memory, bytes); }

 private:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes;
    bool free = false;
    Marker freed_at = {};
  };
  using Blocks = std::map<uintptr_t, Block>;
  static bool Within(const Blocks& blocks, const void* memory, size_t bytes);

  const size_t limit_;
  size_t taken_ = 0;  // from the driver, used or not
  Blocks device_;
  struct Class {
    std::vector<Block*> free;  // has room for all blocks of the class
    size_t blocks = 0;         // free and in use
  };
  std::map<size_t, Class> classes_;  // by size
  Blocks pinned_;
};

}  // namespace engine::detail
