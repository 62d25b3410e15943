// MXNet 1.9.1's engine, through the C API of its wheel (peers/fetch_mxnet.sh fetches it; ENGINE_PERF_MXNET names another).
// Threads:   MXNET_CPU_WORKER_NTHREADS of the default engine (ThreadedEnginePerDevice) on the CPU.
// Order:     one NDArray is one variable.
// Variants:  "" pushes asynchronous ops; "bulk15" synchronous ones, the only kind it bulks, in bulks of 15;
//            "naive" is NaiveEngine, which runs each op inside its push.
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "runner.h"

namespace {

using namespace perf;

// What MXNet's completion callback points to.
struct OnComplete {
  void (*call)(void* engine, void* param, const void* error);
  void* engine;
  void* param;
};
struct Context {
  int device_type = 1;  // CPU
  int device_id = 0;
};
using Array = void*;
using AsyncBody = void (*)(void* run_context, void* on_complete, void* param);
using SyncBody = void (*)(void* run_context, void* param);
using Deleter = void (*)(void*);

// The few functions that are needed. They are declared here, so that no header of MXNet is needed.
struct Api {
  int (*push_async)(AsyncBody, void*, Deleter, Context*, Array*, int, Array*, int, const void*, int, const char*, bool);
  int (*push_sync)(SyncBody, void*, Deleter, Context*, Array*, int, Array*, int, const void*, int, const char*);
  int (*set_bulk_size)(int, int*);
  int (*create)(const unsigned*, unsigned, int, int, int, Array*);
  int (*wait_all)();
  int (*wait_to_read)(Array);
  const char* (*last_error)();
};

Api Load() {
  const char* path = std::getenv("ENGINE_PERF_MXNET");
  void* library = dlopen(path != nullptr ? path : ENGINE_PERF_MXNET_DEFAULT, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error("libmxnet.so cannot be loaded: run perf/peers/fetch_mxnet.sh, or set ENGINE_PERF_MXNET");
  }
  const auto find = [library](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("libmxnet.so has no ") + name);
  };
  Api api;
  find("MXEnginePushAsyncND", api.push_async);
  find("MXEnginePushSyncND", api.push_sync);
  find("MXEngineSetBulkSize", api.set_bulk_size);
  find("MXNDArrayCreate", api.create);
  find("MXNDArrayWaitAll", api.wait_all);
  find("MXNDArrayWaitToRead", api.wait_to_read);
  find("MXGetLastError", api.last_error);
  return api;
}

void RunAsync(void*, void* on_complete, void* gate) {
  if (gate != nullptr) static_cast<Gate*>(gate)->wait();
  Body();
  const auto* done = static_cast<const OnComplete*>(on_complete);
  done->call(done->engine, done->param, nullptr);
}
void RunSync(void*, void*) { Body(); }

class MxNet {
 public:
  explicit MxNet(const Config& config) : bulk_(config.variant == "bulk15"), naive_(config.variant == "naive") {
    setenv("MXNET_CPU_WORKER_NTHREADS", std::to_string(config.workers).c_str(), 1);
    setenv("MXNET_ENGINE_TYPE", naive_ ? "NaiveEngine" : "ThreadedEnginePerDevice", 1);
    api_ = Load();
    const unsigned shape = 1;
    for (Array& array : arrays_) Check(api_.create(&shape, 1, cpu_.device_type, cpu_.device_id, 0, &array));
    int previous = 0;
    Check(api_.set_bulk_size(bulk_ ? 15 : 0, &previous));
  }

  std::string WhyNot(std::string_view name) const {
    if (naive_ && name == kBytesPending) return "the naive engine runs each op inside its push";
    if (name == kOverlap) return "pushes of overlapping sets from several threads deadlock in MXNet";
    if (bulk_ && name == kDisjoint) return "a bulk belongs to its thread, and is lost when that thread ends";
    return {};
  }

  template <std::size_t R, std::size_t U>
  void Push(const Op<R, U>& op) {
    std::array<Array, R> reads;
    std::array<Array, U> updates;
    for (std::size_t i = 0; i < R; ++i) reads[i] = arrays_[op.reads[i]];
    for (std::size_t i = 0; i < U; ++i) updates[i] = arrays_[op.updates[i]];
    if (bulk_) {
      api_.push_sync(RunSync, nullptr, nullptr, &cpu_, reads.data(), R, updates.data(), U, nullptr, 0, nullptr);
    } else {
      api_.push_async(RunAsync, nullptr, nullptr, &cpu_, reads.data(), R, updates.data(), U, nullptr, 0, nullptr,
                      false);
    }
  }
  void PushBlocked(VarId v, Gate& gate) {
    Check(api_.push_async(RunAsync, &gate, nullptr, &cpu_, nullptr, 0, &arrays_[v], 1, nullptr, 0, nullptr, false));
  }
  void WaitAll() { Check(api_.wait_all()); }
  void Wait(VarId v) { Check(api_.wait_to_read(arrays_[v])); }

 private:
  void Check(int failed) const {
    if (failed != 0) throw std::runtime_error(api_.last_error());
  }

  bool bulk_;
  bool naive_;
  Context cpu_;
  Api api_{};
  std::array<Array, kAllVars> arrays_{};
};

}  // namespace

int main(int argc, char** argv) { return perf::Main<MxNet>(argc, argv); }
