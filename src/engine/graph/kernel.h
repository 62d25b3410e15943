// Kernel: the body of a node. It is moved in once, and every run of every plan that has the node runs it.
#pragma once

#include <memory>
#include <new>
#include <string>

#include "engine/graph.h"

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

// For messages.
inline std::string Quote(Name name) {
  if (!*name.c_str()) return "(unnamed)";
  std::string text(1, '\'');  // not `literal + string`, which warns under g++ 12 (-Wrestrict, its PR 105651)
  return text.append(name.c_str()).append(1, '\'');
}
std::string TypeText(const std::type_info* type);

}  // namespace engine::detail
