// Scratch: the memory that functions of MXNet ask for while they run, as products of matrices do.
//
// In MXNet it belongs to one of a few spaces, and an op that may ask for one changes the space's Var; so ops that have nothing else in
// common run one after the other: all ops of a static graph share one space. Here the memory is the running thread's, and the
// Vars of spaces are left out of what an op changes (interposed.cc learns which those are). What a function asks for is its own until
// it returns; a function that runs inside it, on the same thread, has other memory.
//
// Threads:   each sees its own.
// Ownership: of the thread, which keeps the largest that it needed until it ends.
// Errors:    std::bad_alloc.
#pragma once

#include <cstddef>
#include <vector>

namespace engine_mxnet {

struct Scratch {
  struct Slot {
    const void* space;  // of MXNet, whose memory this stands for
    void* memory;
    size_t size;
  };
  ~Scratch();
  std::vector<Slot>
      slots;  // a stack: those of the function that runs lie at [t_here.scratch_begin, t_here.scratch_end)
};

// As MXNet's: the same memory for the same space, until more is asked for; then its content is gone.
void* ScratchMemory(const void* space, size_t bytes);

}  // namespace engine_mxnet
