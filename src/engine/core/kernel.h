// Kernel: the body of a node or an Operator. It is moved in once, and run as often as the node or the Operator is.
#pragma once

#include <new>

#include "engine/submitter.h"

namespace engine::detail {

struct Kernel {
  explicit Kernel(ClosureRef ref)
      : type(ref.type), memory(::operator new(ref.type->size, std::align_val_t{ref.type->align})) {
    try {
      type->construct(memory, ref.object);
    } catch (...) {
      Free();
      throw;
    }
  }
  ~Kernel() {
    if (type->destroy) type->destroy(memory);
    Free();
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const ClosureType* const type;
  void* const memory;

 private:
  void Free() { ::operator delete(memory, std::align_val_t{type->align}); }
};

}  // namespace engine::detail
