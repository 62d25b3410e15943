#include "fork.h"

#include <pthread.h>

#include <mutex>
#include <vector>

#include "drop_in.h"
#include "host.h"

namespace engine_mxnet {
namespace {

std::mutex& Mutex() {  // held from before a fork until behind it
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::vector<DropIn*>& All() {
  static auto* all = new std::vector<DropIn*>;
  return *all;
}
thread_local constinit bool t_forking = false;

void Quiesce(void*) {
  Mutex().lock();
  for (DropIn* engine : All()) engine->BeforeFork();
}

void Before() {
  t_forking = true;
  if (const Host* host = TheHost()) {
    host->without_locks(&Quiesce, nullptr);
  } else {
    Quiesce(nullptr);
  }
}

void After() {
  for (DropIn* engine : All()) engine->AfterFork();
  t_forking = false;
  Mutex().unlock();
}

}  // namespace

void ForkWith(DropIn& engine) {
  const std::lock_guard lock(Mutex());
  static const bool registered =
      pthread_atfork(&Before, &After, &After) == 0;  // behind MXNet's: so it runs before them
  (void)registered;
  All().push_back(&engine);
}

void NoForkWith(DropIn& engine) {
  const std::lock_guard lock(Mutex());
  std::erase(All(), &engine);
}

bool Forking() noexcept { return t_forking; }

int DropIns() noexcept {
  const std::lock_guard lock(Mutex());
  return static_cast<int>(All().size());
}

}  // namespace engine_mxnet
