// Memory: of devices, in pools and alone, and pinned memory of the host.
//
// Every allocation has pages of its own, so that memory that was given back for good ends the process when it is touched. What
// a pool keeps is filled with a pattern where the device's work frees it.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "model.h"

namespace cuda_model {
namespace {

constexpr size_t kTotal = size_t{16} << 30;  // of a device; taken from the system as it is touched
constexpr size_t kGranule = 512;
constexpr int kFresh = 0xCD, kFreed = 0xDB;

char* Map(size_t bytes) {
  void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? nullptr : static_cast<char*>(pages);
}

std::shared_ptr<Block> Make(size_t bytes, bool pinned) {
  auto block = std::make_shared<Block>();
  block->bytes = bytes;
  block->capacity = (bytes + kGranule - 1) / kGranule * kGranule;
  block->pinned = pinned;
  block->device = CurrentDevice();
  return block;
}

bool Take(State& g, const std::shared_ptr<Block>& block) {
  Device& device = g.devices[static_cast<size_t>(block->device)];
  if (!block->pinned && block->capacity > kTotal - device.used) return false;
  block->begin = Map(block->capacity);
  if (!block->begin) return false;
  if (!block->pinned) device.used += block->capacity;
  g.memory[block->begin] = block;
  return true;
}

void GiveBack(State& g, Block& block) {
  if (!block.pinned) g.devices[static_cast<size_t>(block.device)].used -= block.capacity;
  char* const begin = block.begin;
  munmap(begin, block.capacity);
  g.memory.erase(begin);
}

// Free blocks whose frees the device has reached.
void Trim(State& g, Pool& pool, uint64_t keep) {
  uint64_t held = 0;
  for (auto& [begin, block] : g.memory) held += block->pool.get() == &pool ? block->capacity : 0;
  for (auto at = pool.free.begin(); at != pool.free.end() && held > keep;) {
    const std::shared_ptr<Block> block = *at;
    if (!block->freed->reached) {
      ++at;
      continue;
    }
    at = pool.free.erase(at);
    held -= block->capacity;
    GiveBack(g, *block);
  }
}

cudaError_t FreeAlone(Call& call, void* memory, bool pinned) {
  if (const cudaError_t unsafe = call.Unsafe(); unsafe != cudaSuccess) return unsafe;
  if (!memory) return cudaSuccess;
  const auto at = call.g.memory.find(static_cast<char*>(memory));
  if (at == call.g.memory.end() || at->second->pinned != pinned || at->second->pool)
    return call.Misuse(cudaErrorInvalidValue, "not what this function frees, or freed before");
  const std::shared_ptr<Block> block = at->second;
  const cudaError_t lost = call.WaitIdle(block->device);  // "may perform implicit synchronization"
  if (lost == cudaSuccess) GiveBack(call.g, *block);
  return lost;
}

}  // namespace

std::shared_ptr<Block> FindBlock(const void* memory) {
  State& g = state();
  const auto* at = static_cast<const char*>(memory);
  auto behind = g.memory.upper_bound(at);
  if (behind == g.memory.begin()) return nullptr;
  const std::shared_ptr<Block>& block = std::prev(behind)->second;
  return at < block->begin + block->capacity ? block : nullptr;
}

bool MayTouch(const void* memory, size_t bytes) {
  const std::lock_guard lock(state().mu);
  const std::shared_ptr<Block> block = FindBlock(memory);
  return block && (block->pinned || block->on_device == 1) &&
         static_cast<const char*>(memory) + bytes <= block->begin + block->capacity;
}

void ReleaseUnused(int device) {
  State& g = state();
  std::set<std::shared_ptr<Pool>> pools;  // destroyed ones as well
  for (auto& [begin, block] : g.memory)
    if (block->pool && block->device == device) pools.insert(block->pool);
  for (const auto& pool : pools) Trim(g, *pool, pool->threshold);
}

}  // namespace cuda_model

using namespace cuda_model;

extern "C" {

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    if (const cudaError_t unsafe = call.Unsafe(); unsafe != cudaSuccess) return unsafe;
    if (const cudaError_t lost = call.WaitIdle(CurrentDevice()); lost != cudaSuccess) return lost;
    const auto block = Make(bytes, false);
    if (!Take(call.g, block)) return cudaErrorMemoryAllocation;
    block->allocated = true;
    block->on_device = 1;
    std::memset(block->begin, kFresh, block->bytes);
    *memory = block->begin;
    return cudaSuccess;
  });
}

cudaError_t cudaFree(void* memory) {
  return Api(
      __func__, [&](Call& call) { return FreeAlone(call, memory, false); }, Release::kYes);
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    if (const cudaError_t unsafe = call.Unsafe(); unsafe != cudaSuccess) return unsafe;
    if (flags > (cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined) || bytes == 0)
      return call.Misuse(cudaErrorInvalidValue, "the flags, or no bytes");
    if (const cudaError_t lost = call.WaitIdle(CurrentDevice()); lost != cudaSuccess) return lost;
    const auto block = Make(bytes, true);
    if (!Take(call.g, block)) return cudaErrorMemoryAllocation;
    block->allocated = true;
    *memory = block->begin;
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* memory) {
  return Api(
      __func__, [&](Call& call) { return FreeAlone(call, memory, true); }, Release::kYes);
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* wanted) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    cudaMemPoolProps only{};
    only.allocType = cudaMemAllocationTypePinned;
    only.location.type = cudaMemLocationTypeDevice;
    only.location.id = wanted->location.id;
    if (std::memcmp(&only, wanted, sizeof only) != 0)
      return call.Misuse(cudaErrorInvalidValue,
                         "properties that are not modelled, or reserved bytes that are not zero");
    if (only.location.id < 0 || static_cast<size_t>(only.location.id) >= call.g.devices.size())
      return call.Misuse(cudaErrorInvalidDevice, "no such device");
    auto made = std::make_shared<Pool>();
    made->device = only.location.id;
    *pool = static_cast<cudaMemPool_t>(call.g.pools.Add(made));
    return cudaSuccess;
  });
}

// "If any pointers obtained from this pool haven't been freed [...] the resources [...] will be released automatically once
// there are no more outstanding allocations": blocks hold their pool.
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        const auto found = call.Find(call.g.pools, pool);
        if (!found) return cudaErrorInvalidValue;
        found->threshold = 0;
        Trim(call.g, *found, 0);
        call.g.pools.Remove(pool);
        return cudaSuccess;
      },
      Release::kYes);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.pools, pool);
    if (!found) return cudaErrorInvalidValue;
    if (attribute == cudaMemPoolAttrReleaseThreshold) {
      std::memcpy(&found->threshold, value, sizeof found->threshold);
    } else if (attribute == cudaMemPoolReuseAllowInternalDependencies) {
      int allowed = 0;
      std::memcpy(&allowed, value, sizeof allowed);
      found->internal_dependencies = allowed != 0;
    } else {
      return call.Misuse(cudaErrorInvalidValue, "an attribute that is not modelled");
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* list, size_t count) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.pools, pool);
    if (!found) return cudaErrorInvalidValue;
    for (size_t i = 0; i < count; ++i) {
      const int device = list[i].location.id;
      if (list[i].location.type != cudaMemLocationTypeDevice || device < 0 ||
          static_cast<size_t>(device) >= call.g.devices.size() || list[i].flags != cudaMemAccessFlagsProtReadWrite)
        return call.Misuse(cudaErrorInvalidValue, "a place, or an access, that is not modelled");
      found->peers.insert(device);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto found = call.Find(call.g.pools, pool);
    if (!found) return cudaErrorInvalidValue;
    Trim(call.g, *found, keep);
    return cudaSuccess;
  });
}

cudaError_t cudaMallocFromPoolAsync(void** memory, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto from = call.Find(call.g.pools, pool);
    const auto on = call.Find(call.g.streams, stream);
    if (!from) return cudaErrorInvalidValue;
    if (!on) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return call.Misuse(cudaErrorInvalidValue, "no bytes");
    if (on->capture) return call.Misuse(cudaErrorNotSupported, "nodes that allocate are not modelled");
    auto wanted = Make(bytes, false);
    wanted->device = from->device;
    // What this stream freed is behind its work anyway; what another did has to be over (the pool's defaults).
    const auto fits = [&](const std::shared_ptr<Block>& b) {
      return b->capacity == wanted->capacity && (b->freed_on == stream || b->freed->reached);
    };
    auto at = std::find_if(from->free.begin(), from->free.end(), fits);
    // Else, unless it is told not to, it takes what is still in use, and has the stream wait for the one that freed it.
    if (at == from->free.end() && from->internal_dependencies) {
      at = std::find_if(from->free.begin(), from->free.end(),
                        [&](const auto& b) { return b->capacity == wanted->capacity; });
      if (at != from->free.end()) Submit(*on, {{}, (*at)->freed, {}});
    }
    if (at != from->free.end()) {
      wanted = *at;
      from->free.erase(at);
    } else if (!Take(call.g, wanted)) {
      return cudaErrorMemoryAllocation;
    }
    wanted->bytes = bytes;
    wanted->allocated = true;
    wanted->pool = from;
    Submit(*on, {[wanted] {
                   std::memset(wanted->begin, kFresh, wanted->bytes);
                   const std::lock_guard lock(state().mu);
                   ++wanted->on_device;
                 },
                 {},
                 {}});
    *memory = wanted->begin;
    return cudaSuccess;
  });
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return Api(
      __func__,
      [&](Call& call) -> cudaError_t {
        const auto on = call.Find(call.g.streams, stream);
        if (!on) return cudaErrorInvalidResourceHandle;
        if (on->capture) return call.Misuse(cudaErrorNotSupported, "nodes that free are not modelled");
        const auto at = call.g.memory.find(static_cast<char*>(memory));
        if (at == call.g.memory.end() || !at->second->pool)
          return call.Misuse(cudaErrorInvalidValue, "not from a pool");
        const std::shared_ptr<Block> block = at->second;
        if (!block->allocated) return call.Misuse(cudaErrorInvalidValue, "freed twice");
        if (block->device != on->device) return call.Misuse(cudaErrorInvalidValue, "memory of another device");
        block->allocated = false;
        block->freed_on = stream;
        block->freed = std::make_shared<Point>();
        Submit(*on, {[block] {
                       {
                         const std::lock_guard lock(state().mu);
                         if (--block->on_device != 0) Violation("cudaFreeAsync", "the free runs before the allocation");
                       }
                       std::memset(block->begin, kFreed, block->capacity);
                     },
                     {},
                     block->freed});
        block->pool->free.push_back(block);
        return cudaSuccess;
      },
      Release::kYes);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    *attributes = {};
    const auto block = FindBlock(memory);
    if (!block || static_cast<const char*>(memory) >= block->begin + block->bytes) {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->device = cudaInvalidDeviceId;
      attributes->hostPointer = const_cast<void*>(memory);
      return cudaSuccess;
    }
    if (!block->allocated) return call.Misuse(cudaErrorInvalidValue, "the memory was freed");
    attributes->type = block->pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    attributes->device = block->device;
    attributes->devicePointer = const_cast<void*>(memory);
    if (block->pinned) attributes->hostPointer = const_cast<void*>(memory);
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    *total = kTotal;
    *free = kTotal - call.g.devices[static_cast<size_t>(CurrentDevice())].used;
    return cudaSuccess;
  });
}

}  // extern "C"
