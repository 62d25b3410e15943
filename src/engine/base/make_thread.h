// MakeThread: makes a thread, or throws an Error that says which thread the system refused (a limit of threads or
// memory). The thread may use what its maker could before the engine confined it to one of a pool's `cpus`.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/affinity.h"
#include "engine/error.h"

namespace engine::detail {

template <class Main>
std::thread MakeThread(const char* what, Main&& main) {
  try {
    return std::thread([main = std::forward<Main>(main), processors = ProcessorsBefore()]() mutable {
      TakeProcessors(processors);
      main();
    });
  } catch (const std::system_error& e) {
    throw Error(std::string("the system refused ") + what + ": " + e.what());
  }
}

}  // namespace engine::detail
