// PerThread<T>: a thread's own T, made on first use and destroyed when the thread ends.
//
// Unlike a thread_local T, it may be used by objects that are destroyed after it: by thread-locals, and on the main
// thread by statics. Such a late use makes a new T, which is also destroyed when the thread ends; that of the main
// thread stays reachable until the process is gone. If there is no memory for it, the use throws; a thread_local would
// end the process.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

namespace engine::detail {

template <class T>
class PerThread {
 public:
  static T& Get() {
    if (!own_) [[unlikely]]
      Make();
    return *own_;
  }
  static T* Made() noexcept { return own_; }  // null: not made yet, or destroyed already

 private:
  // If a T is made after the key's destructor has run, the destructor runs again. The key is never given back, so that
  // a thread that ends while the process exits finds it. The library is never unloaded (CMakeLists.txt), so that a
  // thread that ends later finds the destructor.
  static pthread_key_t Key() {
    // Not a static that is made on first use: in a fork's child, its guard may be locked for ever. 0: not made yet.
    static constinit std::atomic<uint64_t> key{0};
    // acquire: what the C library knows of a key that another thread has made. Partner: the exchange.
    uint64_t known = key.load(std::memory_order_acquire);
    if (known) return static_cast<pthread_key_t>(known - 1);
    pthread_key_t made;
    if (pthread_key_create(&made, &End) != 0) throw std::bad_alloc();
    if (key.compare_exchange_strong(known, uint64_t{made} + 1, std::memory_order_acq_rel)) return made;
    pthread_key_delete(made);  // another thread was faster
    return static_cast<pthread_key_t>(known - 1);
  }
  static void Make() {
    const pthread_key_t key = Key();
    auto made = std::make_unique<T>();
    if (pthread_setspecific(key, made.get()) != 0) throw std::bad_alloc();
    own_ = made.release();
  }
  static void End(void* own) {
    own_ = nullptr;
    delete static_cast<T*>(own);
  }

  static inline thread_local constinit T* own_ = nullptr;
};

}  // namespace engine::detail
