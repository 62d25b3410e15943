#include "support/no_threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

namespace engine::test {
std::atomic<int> g_threads_allowed{1 << 30};
}

using Create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
extern "C" __attribute__((weak)) Create __interceptor_pthread_create;  // a sanitizer's, which has to know of threads
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attr, void* (*main)(void*), void* arg) {
  if (engine::test::g_threads_allowed.fetch_sub(1) <= 0) return EAGAIN;
  static auto* const next = reinterpret_cast<Create*>(dlsym(RTLD_NEXT, "pthread_create"));
  return (__interceptor_pthread_create ? __interceptor_pthread_create : next)(thread, attr, main, arg);
}
