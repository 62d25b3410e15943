// PerThread<T>: a thread's own T, made on first use and destroyed when the thread ends.
//
// Unlike a thread_local T it may be used by what is destroyed after it: by thread-locals, which go before it, and on the main
// thread by statics. Such a late use makes a new T, which goes when the thread ends, too; the main thread's stays reachable
// until the process is gone. And where there is no memory for it, the use throws; a thread_local would end the process.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <memory>
#include <new>
#include <utility>

namespace engine::detail {

template <class T>
class PerThread {
 public:
  static T& Get() {
    if (!own_) [[unlikely]]
      Make();
    return *own_;
  }
  static T* Made() noexcept { return own_; }  // null: not yet, or no longer

 private:
  // A key, whose destructor runs again for what is made after it has run. It goes with the library, and leaves what threads
  // have then.
  struct Key {
    Key() : made(pthread_key_create(&value, &End) == 0) {}
    ~Key() {
      if (made) pthread_key_delete(value);
    }
    pthread_key_t value;
    const bool made;
  };
  static void Make() {
    static const Key key;
    auto made = std::make_unique<T>();
    // Behind the end of the key (a static's destructor) there is no end to be told of.
    if (const int error = pthread_setspecific(key.value, made.get()); error == ENOMEM || !key.made)
      throw std::bad_alloc();
    own_ = made.release();
  }
  static void End(void* own) {
    own_ = nullptr;
    delete static_cast<T*>(own);
  }

  static inline thread_local constinit T* own_ = nullptr;
};

}  // namespace engine::detail
