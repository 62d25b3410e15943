// ModelLock: a lock in the state of a model. Whoever finds it taken waits until it is free; taking it and giving it back are steps
// that the explorer interleaves with those of other threads.
#pragma once

#include "explorer.h"

namespace checker {

struct ModelLock {
  void Lock() {
    Explorer::current().PointWhile<uint8_t>(&taken, 1);
    taken = 1;
  }
  void Unlock() {
    Explorer::current().Point();
    taken = 0;
  }
  uint8_t taken = 0;
};

}  // namespace checker
