// Functions of libmxnet.so that it finds here first, because it calls them like its engine factories. Each calls the original.
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "abi.h"
#include "failures.h"
#include "here.h"
#include "library.h"
#include "options.h"
#include "profiler.h"
#include "scratch.h"

namespace engine_mxnet {
namespace {

constexpr size_t kLocks = 64;

// Of an array's memory. Never destroyed: arrays are used while the process ends.
std::mutex& LockOf(const void* array) {
  static auto* const locks = new std::array<std::mutex, kLocks>;
  return (*locks)[std::hash<uintptr_t>()(reinterpret_cast<uintptr_t>(array) >> 6) % kLocks];
}

// The manager hands out its spaces in turn: what it gives until one comes again are all.
[[gnu::noinline]] void LearnScratchVars(mxnet::ResourceManager* manager) {
  t_here.resources = manager;
  constexpr mxnet::ResourceRequest kSpace{mxnet::ResourceRequest::kTempSpace};
  const abi::Var* const first = manager->Request({}, kSpace).var;
  const abi::Var* next = first;
  do {
    const_cast<Var*>(static_cast<const Var*>(next))->scratch.store(true, std::memory_order_relaxed);
    next = manager->Request({}, kSpace).var;
  } while (next != first);
}

}  // namespace
}  // namespace engine_mxnet

namespace mxnet {

using engine_mxnet::OfMxnet;
using engine_mxnet::t_here;

// MXNet knows its own engine types only.
std::shared_ptr<Engine> Engine::_GetSharedRef() {
  static auto* const original = OfMxnet<std::shared_ptr<Engine>()>("_ZN5mxnet6Engine13_GetSharedRefEv");
  static const bool made = [] {
    const engine_mxnet::HiddenEngineType hidden;
    original();
    return true;
  }();
  (void)made;
  return original();
}

// Each thread has a manager, whose Vars are known before that thread pushes an op that names them.
ResourceManager* ResourceManager::Get() {
  static auto* const original = OfMxnet<ResourceManager*()>("_ZN5mxnet15ResourceManager3GetEv");
  ResourceManager* const manager = original();
  if (manager != t_here.resources && engine_mxnet::ScratchIsPrivate()) [[unlikely]]
    engine_mxnet::LearnScratchVars(manager);
  return manager;
}

void* Resource::get_space_internal(size_t size) const {
  if (engine_mxnet::ScratchIsPrivate()) [[likely]]
    return engine_mxnet::ScratchMemory(ptr_, size);
  static auto* const original = OfMxnet<void*(const Resource*, size_t)>("_ZNK5mxnet8Resource18get_space_internalEm");
  return original(this, size);
}

// A second memory of the same space.
void* Resource::get_host_space_internal(size_t size) const {
  if (engine_mxnet::ScratchIsPrivate()) [[likely]]
    return engine_mxnet::ScratchMemory(static_cast<const char*>(ptr_) + 1, size);
  static auto* const original =
      OfMxnet<void*(const Resource*, size_t)>("_ZNK5mxnet8Resource23get_host_space_internalEm");
  return original(this, size);
}

// Who reads an array first makes oneDNN's view of it and keeps it in the array: two readers at once would each make one, and free the
// other's. (A scratch space that both of them wrote hid that mostly, also in MXNet.)
const void* NDArray::GetMKLDNNData() const {
  static auto* const original = OfMxnet<const void*(const NDArray*)>("_ZNK5mxnet7NDArray13GetMKLDNNDataEv");
  const std::lock_guard lock(engine_mxnet::LockOf(memory));
  return original(this);
}

void profiler::Profiler::SetState(ProfilerState state) {
  static auto* const original =
      OfMxnet<void(Profiler*, ProfilerState)>("_ZN5mxnet8profiler8Profiler8SetStateENS1_13ProfilerStateE");
  if (state == kRunning) engine_mxnet::SayThatTheProfilerSeesNoOps();
  original(this, state);
}

}  // namespace mxnet
