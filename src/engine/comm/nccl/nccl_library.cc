// NCCL's functions that this project calls: each is passed on to libnccl.so.2, which is loaded at the first call. So one build
// runs with the NCCL of the machine, with the one of a PyTorch that the process has loaded, and without any. Where there is
// none, each later call tries again: the process may import PyTorch in between.
//
// Threads:   as NCCL's.
// Ownership: the library stays loaded.
// Errors:    without the library each call returns ncclSystemError, and ncclGetErrorString says what the loader said.
#include <dlfcn.h>

#include <atomic>
#include <string>

#pragma GCC visibility push(hidden)  // what is defined here stands for NCCL's own in this library or program only
#include <nccl.h>
#pragma GCC visibility pop

namespace {

// What the loader said to this thread's last call that found no library.
std::string& Missing() {
  thread_local std::string missing;
  return missing;
}

// Null if it cannot be loaded.
void* Nccl() {
  static constinit std::atomic<void*> loaded{nullptr};
  // relaxed: the handle is the loader's; several threads find the same one.
  if (void* const handle = loaded.load(std::memory_order_relaxed)) return handle;
  void* const handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle) {
    loaded.store(handle, std::memory_order_relaxed);
  } else {
    const char* const said = dlerror();
    Missing() = "NCCL cannot be loaded: " + std::string(said ? said : "libnccl.so.2") +
                "; `pip install nvidia-nccl-cu13` brings it, and so do PyTorch for CUDA and NCCL's own packages";
  }
  return handle;
}

// `known`: what was found before.
template <class Function>
Function* FindInNccl(std::atomic<Function*>& known, const char* name) {
  // relaxed: as above.
  if (Function* const found = known.load(std::memory_order_relaxed)) return found;
  void* const handle = Nccl();
  auto* const found = handle ? reinterpret_cast<Function*>(dlsym(handle, name)) : nullptr;
  known.store(found, std::memory_order_relaxed);
  return found;
}

}  // namespace

// A function of NCCL's as declared, by its parameters and by their names.
#define PASS_ON(name, parameters, arguments)                      \
  ncclResult_t name parameters {                                  \
    static constinit std::atomic<decltype(name)*> known{nullptr}; \
    auto* const found = FindInNccl(known, #name);                 \
    return found ? found arguments : ncclSystemError;             \
  }

extern "C" {

PASS_ON(ncclGetVersion, (int* version), (version))
PASS_ON(ncclGetUniqueId, (ncclUniqueId * id), (id))
PASS_ON(ncclCommInitRankConfig, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config),
        (comm, ranks, id, rank, config))
PASS_ON(ncclCommInitAll, (ncclComm_t * comms, int devices, const int* ordinals), (comms, devices, ordinals))
PASS_ON(ncclCommFinalize, (ncclComm_t comm), (comm))
PASS_ON(ncclCommDestroy, (ncclComm_t comm), (comm))
PASS_ON(ncclCommAbort, (ncclComm_t comm), (comm))
PASS_ON(ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* result), (comm, result))
PASS_ON(ncclGroupStart, (), ())
PASS_ON(ncclGroupEnd, (), ())
PASS_ON(ncclAllReduce,
        (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
         cudaStream_t stream),
        (send, recv, count, type, op, comm, stream))
PASS_ON(ncclBroadcast,
        (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
         cudaStream_t stream),
        (send, recv, count, type, root, comm, stream))
PASS_ON(ncclReduceScatter,
        (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
         cudaStream_t stream),
        (send, recv, count, type, op, comm, stream))
PASS_ON(ncclAllGather,
        (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream),
        (send, recv, count, type, comm, stream))
PASS_ON(ncclSend, (const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
        (send, count, type, peer, comm, stream))
PASS_ON(ncclRecv, (void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
        (recv, count, type, peer, comm, stream))

const char* ncclGetErrorString(ncclResult_t result) {
  static constinit std::atomic<decltype(ncclGetErrorString)*> known{nullptr};
  auto* const found = FindInNccl(known, "ncclGetErrorString");
  return found ? found(result) : Missing().c_str();
}
const char* ncclGetLastError(ncclComm_t comm) {
  static constinit std::atomic<decltype(ncclGetLastError)*> known{nullptr};
  auto* const found = FindInNccl(known, "ncclGetLastError");
  return found ? found(comm) : Missing().c_str();
}

}  // extern "C"
