// MakeThread: makes a thread, or throws an Error that says which thread the system refused (a limit of threads or
// memory).
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/error.h"

namespace engine::detail {

template <class Main>
std::thread MakeThread(const char* what, Main&& main) {
  try {
    return std::thread(std::forward<Main>(main));
  } catch (const std::system_error& e) {
    throw Error(std::string("the system refused ") + what + ": " + e.what());
  }
}

}  // namespace engine::detail
