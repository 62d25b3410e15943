// StoreBuffer: a counter that one thread writes and others read, whose last write may still sit in the writer's store
// buffer. This is what the light side of an asymmetric fence leaves open; the heavy side empties every buffer.
//
// One write deep: a second write waits for the first. That is part of what hardware may do, and all that the
// store-load races of the models need.
#pragma once

#include <cstdint>

#include "explorer.h"

namespace checker {

struct StoreBuffer {
  uint8_t visible;
  uint8_t pending;  // writes in the buffer, each adding one: 0 or 1

  // For the writer.
  void Add() {
    Flush();
    pending = 1;
  }
  void Flush() {
    visible = static_cast<uint8_t>(visible + pending);
    pending = 0;
  }
  // The body of a thread of its own: the buffer empties whenever it likes.
  void Drain() {
    for (;;) {
      Explorer::current().PauseWhile<uint8_t>(&pending, 0);
      Flush();
    }
  }
};

}  // namespace checker
