// Library: what we use of libmxnet.so, found when MXNet asks for its engine, or first calls what is interposed.
//
// Threads:   Library() once, while MXNet makes its engine; the rest anywhere.
// Ownership: keeps MXNet's Storage and profiler alive, as MXNet's own engine does: its static objects end in an order in which
//            deletions still need them.
// Errors:    UsageError where the library is another version than ours is made for.
#pragma once

#include <memory>
#include <string>

namespace engine_mxnet {

inline constexpr int kMxnetVersion = 10901;  // 1.9.1

class Library {
 public:
  Library();

 private:
  std::shared_ptr<void> storage_;
  std::shared_ptr<void> profiler_;
};

// The address of what libmxnet.so has under this name. UsageError: nothing.
void* AddressOfMxnet(const char* name);
template <class F>
F* OfMxnet(const char* name) {
  return reinterpret_cast<F*>(AddressOfMxnet(name));
}

// Tells MXNet's OpenMP that the calling thread is a worker.
void StartWorkerThread();

// The path of the libmxnet.so that this process has loaded; empty: none.
std::string LoadedMxnet();
// The path of the library that this is part of.
const char* OwnPath();
// The library whose factories MXNet would find, if it is another than this one; empty: it is this one.
std::string OtherFactories();

}  // namespace engine_mxnet
