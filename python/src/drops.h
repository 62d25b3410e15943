// Drops: a call that drops the references that die in it, at its end.
#pragma once

namespace engine_python {

// While it lives, references that die on this thread are left in the deferred queue (gil.h), and the interpreter is not asked
// to drop them: each such request costs as much as a node. They are dropped when it ends, and by bodies meanwhile. The GIL
// is held when it ends.
class DropsAtEnd {
 public:
  DropsAtEnd() noexcept;
  ~DropsAtEnd();
  DropsAtEnd(const DropsAtEnd&) = delete;
};

}  // namespace engine_python
