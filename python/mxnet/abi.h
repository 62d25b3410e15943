// ABI: what libmxnet.so 1.9.1 and its engine say to each other, declared by ourselves: no header of MXNet is needed.
//
// Only layouts count here: the order of virtual functions, and fields. All of it has names of its own, so that nothing of it
// takes the place of MXNet's own tables; dmlc::Error alone keeps its name, because MXNet catches it by that.
//
// Source: MXNet 1.9.1, include/mxnet/engine.h, base.h, resource.h and ndarray.h, src/profiler/profiler.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "function.h"

namespace dmlc {
// What MXNet's checks throw.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace dmlc

namespace engine_mxnet::abi {

struct Context {
  int32_t device_type = 1;
  int32_t device_id = 0;
};
inline constexpr int32_t kCpu = 1, kGpu = 2;  // the others are on the host, too: 3 pinned, 5 shared between processes

struct RunContext {
  Context context;
  void* stream = nullptr;  // a GPU's
  void* aux_stream = nullptr;
  bool is_bulk = false;
};

class Engine;

// How an asynchronous function says that it is done: copied at will, called once.
struct OnComplete {
  void (*call)(Engine* engine, void* param, const dmlc::Error* error);
  Engine* engine;
  void* param;
};

using SyncFn = Function<RunContext>;
using AsyncFn = Function<RunContext, OnComplete>;
using SyncCFn = CFunction<RunContext>;
using AsyncCFn = CFunction<RunContext, OnComplete>;

enum class Property : int {
  kNormal,
  kCopyFromGpu,
  kCopyToGpu,
  kCpuPrioritized,
  kAsync,
  kDeleteVar,
  kGpuPrioritized,
  kNoSkip,
};

struct Var {
  virtual size_t version() = 0;
  virtual ~Var() = default;
  size_t version_field = 0;  // MXNet's NaiveEngine counts here; ours answers by the function
};
using Vars = std::vector<Var*>;

struct Opr;  // the engine's own

class Engine {
 public:
  virtual void NotifyShutdown() = 0;
  virtual void Stop() = 0;
  virtual void Start() = 0;
  virtual Var* NewVariable() = 0;
  virtual Opr* NewOperator(AsyncFn fn, const Vars& reads, const Vars& updates, Property property, const char* name,
                           bool wait) = 0;
  virtual void DeleteOperator(Opr* op) = 0;
  virtual void Push(Opr* op, Context context, int priority, bool profiling) = 0;
  virtual void PushAsync(AsyncFn fn, Context context, const Vars& reads, const Vars& updates, Property property,
                         int priority, const char* name, bool wait) = 0;
  virtual void DeleteVariable(SyncFn fn, Context context, Var* var) = 0;
  virtual void WaitForVar(Var* var) = 0;
  virtual void WaitForAll() = 0;
  virtual void Throw(Var* var) = 0;
  virtual ~Engine() noexcept(false) = default;
  virtual void PushSync(SyncFn fn, Context context, const Vars& reads, const Vars& updates, Property property,
                        int priority, const char* name) = 0;
  virtual int bulk_size() const = 0;
  virtual int set_bulk_size(int size) = 0;
};

}  // namespace engine_mxnet::abi

// What libmxnet.so finds here instead of its own. The names are MXNet's, for it looks for them; each class has only what we use of it.
namespace mxnet {

class Engine {
 public:
  [[gnu::visibility("default")]] static std::shared_ptr<Engine> _GetSharedRef();
};

namespace engine {
[[gnu::visibility("default")]] Engine* CreateThreadedEnginePerDevice();
[[gnu::visibility("default")]] Engine* CreateThreadedEnginePooled();
[[gnu::visibility("default")]] Engine* CreateNaiveEngine();
}  // namespace engine

struct ResourceRequest {
  enum Type : int { kRandom, kTempSpace, kParallelRandom } type;
};

struct Resource {
  // Scratch memory of at least that many bytes; valid while the function runs that asks for it.
  [[gnu::visibility("default")]] void* get_space_internal(size_t size) const;
  [[gnu::visibility("default")]] void* get_host_space_internal(size_t size) const;

  ResourceRequest request;
  engine_mxnet::abi::Var* var;
  int32_t id;
  void* ptr_;  // of a space: which one it is
};

class ResourceManager {
 public:
  virtual Resource Request(engine_mxnet::abi::Context context, const ResourceRequest& request) = 0;
  // The calling thread's. The virtual functions behind the first do not matter here.
  [[gnu::visibility("default")]] static ResourceManager* Get();

 protected:
  ~ResourceManager() = default;
};

struct NDArray {
  // oneDNN's view of the array.
  [[gnu::visibility("default")]] const void* GetMKLDNNData() const;
  const void* memory;  // of a shared pointer, whose other half does not matter here
};

namespace profiler {
class Profiler {
 public:
  enum ProfilerState { kNotRunning, kRunning };
  [[gnu::visibility("default")]] void SetState(ProfilerState state);
};
}  // namespace profiler

}  // namespace mxnet
