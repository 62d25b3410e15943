// Here: what the drop-in keeps for each thread. Every op comes by, so it is one small object, found without a call.
//
// Threads:   each sees its own.
// Ownership: `spare`, `names` and `scratch` go with the thread, once Keep was called.
#pragma once

#include <cstdint>

#include "engine/op.h"

namespace engine_mxnet {

class Call;
struct Scratch;

// A text of MXNet's, by its address, and the engine's name of it.
struct KnownName {
  const char* text = nullptr;
  ::engine::Name name;
};

struct Here {
  int depth = 0;               // functions of MXNet on this thread's stack
  int bulk_size = 0;           // what MXNet has set
  bool started = false;        // MXNet's OpenMP knows that the thread is a worker
  bool ending = false;         // the thread's objects are gone: it keeps nothing more
  uint32_t scratch_begin = 0;  // the part of the scratch memory that the running function uses (scratch.h)
  uint32_t scratch_end = 0;
  Call* spare = nullptr;       // the Call that the next function uses
  KnownName* names = nullptr;  // a table of kKnownNames
  Scratch* scratch = nullptr;
  const void* resources = nullptr;  // MXNet's manager of this thread, whose Vars are known

  // Sees to it that what the thread keeps goes with it. Called where something is kept for the first time.
  static void Keep();
};

inline constexpr size_t kKnownNames = 256;  // MXNet has some 500 operators, of which a program uses a few dozen

extern constinit thread_local Here t_here [[gnu::tls_model("initial-exec")]];

// While it lives a function of MXNet runs on this thread, with scratch memory of its own.
class Inside {
 public:
  explicit Inside(Here& here = t_here) noexcept : here_(here), begin_(here.scratch_begin) {
    ++here_.depth;
    here_.scratch_begin = here_.scratch_end;
  }
  ~Inside() {
    --here_.depth;
    here_.scratch_end = here_.scratch_begin;
    here_.scratch_begin = begin_;
  }

 private:
  Here& here_;
  const uint32_t begin_;
};

}  // namespace engine_mxnet
