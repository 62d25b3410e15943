// Host: whose engine MXNet's ops go to. In Python it is the default engine of the package; a program that only loads the
// library has none, and each factory then makes an engine of its own.
//
// Threads: SetHost before MXNet is loaded; the functions are called on any thread.
#pragma once

#include "engine/engine.h"

namespace engine_mxnet {

struct Host {
  // The engine, made on the first call. Throws what making it throws.
  ::engine::Engine& (*engine)();
  // Calls fn(argument) with what the calling thread must not keep while it waits given up: the GIL.
  void (*without_locks)(void (*fn)(void*), void* argument);
};

void SetHost(const Host& host);
const Host* TheHost() noexcept;  // null: none
// How many engines MXNet has been given.
int DropIns() noexcept;

}  // namespace engine_mxnet
