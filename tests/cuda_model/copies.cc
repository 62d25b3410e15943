// Copies between memories, which have to be what the call says they are.
#include <cstring>

#include "model.h"

namespace cuda_model {
namespace {

enum class Side { kDevice, kPinned, kPageable };

// What the memory is; a violation if it is not all in use. As the calls go: what the work finds is seen when it runs.
cudaError_t Look(Call& call, const char* which, const void* memory, size_t bytes, Side* side) {
  const auto block = FindBlock(memory);
  *side = !block ? Side::kPageable : block->pinned ? Side::kPinned : Side::kDevice;
  if (!memory) return call.Misuse(cudaErrorInvalidValue, std::string(which) + " is null");
  if (!block) return cudaSuccess;
  if (!block->allocated) return call.Misuse(cudaErrorInvalidValue, std::string(which) + " was freed");
  if (static_cast<const char*>(memory) + bytes > block->begin + block->bytes)
    return call.Misuse(cudaErrorInvalidValue, std::string(which) + " ends beyond its allocation");
  return cudaSuccess;
}

cudaError_t Check(Call& call, const CopyCall& copy, Side* from, Side* to) {
  if (const cudaError_t bad = Look(call, "the source", copy.from, copy.bytes, from); bad != cudaSuccess) return bad;
  if (const cudaError_t bad = Look(call, "the destination", copy.to, copy.bytes, to); bad != cudaSuccess) return bad;
  if (copy.kind == cudaMemcpyDefault) return cudaSuccess;
  const bool from_device = copy.kind == cudaMemcpyDeviceToHost || copy.kind == cudaMemcpyDeviceToDevice;
  const bool to_device = copy.kind == cudaMemcpyHostToDevice || copy.kind == cudaMemcpyDeviceToDevice;
  if (from_device != (*from == Side::kDevice) || to_device != (*to == Side::kDevice))
    return call.Misuse(cudaErrorInvalidValue, "the memories are not those of the direction");
  return cudaSuccess;
}

}  // namespace

void RunCopy(const CopyCall& copy) {
  const auto usable = [&](const void* memory) {
    {
      const std::lock_guard lock(state().mu);
      if (!FindBlock(memory)) return true;  // pageable: the call looked after it
    }
    return MayTouch(memory, copy.bytes);
  };
  if (usable(copy.from) && usable(copy.to)) {
    std::memmove(copy.to, copy.from, copy.bytes);
    return;
  }
  Violation("copy", "it ran outside of its memory's life on the device");
  const std::lock_guard lock(state().mu);
  Lose(cudaErrorIllegalAddress);
}

void RunSet(const cudaMemsetParams& set) {
  for (size_t row = 0; row < set.height; ++row) {
    char* const to = static_cast<char*>(set.dst) + row * set.pitch;
    if (!MayTouch(to, set.width * set.elementSize)) {
      Violation("set", "it ran outside of its memory's life on the device");
      const std::lock_guard lock(state().mu);
      return Lose(cudaErrorIllegalAddress);
    }
    for (size_t i = 0; i < set.width; ++i) std::memcpy(to + i * set.elementSize, &set.value, set.elementSize);
  }
}

}  // namespace cuda_model

using namespace cuda_model;

extern "C" {

// Pageable memory ("API synchronization behavior"): to the device, the stream is synchronized, and the call returns when the
// memory was staged, maybe before the device has it; from the device, it returns when all is over.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto on = call.Find(call.g.streams, stream);
    if (!on) return cudaErrorInvalidResourceHandle;
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
    if (bytes == 0) return cudaSuccess;
    Side source{}, destination{};
    const CopyCall copy{to, from, bytes, kind};
    if (const cudaError_t bad = Check(call, copy, &source, &destination); bad != cudaSuccess) return bad;
    const bool pageable = source == Side::kPageable || destination == Side::kPageable;
    if (!pageable) return Issue(call, *on, copy);
    if (on->capture) {
      Invalidate(*on->capture);
      return cudaErrorStreamCaptureUnsupported;
    }
    if (source == Side::kPageable) {
      const uint64_t until = on->submitted;
      if (const cudaError_t lost = call.Wait([&] { return on->ended >= until; }); lost != cudaSuccess) return lost;
      auto staged = std::make_shared<std::vector<char>>(bytes);
      std::memcpy(staged->data(), from, bytes);
      Submit(*on, {[=] { RunCopy({to, staged->data(), bytes, kind}); }, {}, {}});
      if (destination == Side::kDevice) return cudaSuccess;
    } else {
      Submit(*on, {[=] { RunCopy({to, from, bytes, kind}); }, {}, {}});
    }
    const uint64_t until = on->submitted;
    return call.Wait([&] { return on->ended >= until; });
  });
}

// By stream 0, which streams that do not block neither wait for nor keep waiting.
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    if (const cudaError_t unsafe = call.Unsafe(); unsafe != cudaSuccess) return unsafe;
    if (bytes == 0) return cudaSuccess;
    Side source{}, destination{};
    if (const cudaError_t bad = Check(call, {to, from, bytes, kind}, &source, &destination); bad != cudaSuccess)
      return bad;
    call.lock.unlock();
    RunCopy({to, from, bytes, kind});
    call.lock.lock();
    return call.g.lost;
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return Api(__func__, [&](Call& call) -> cudaError_t {
    const auto on = call.Find(call.g.streams, stream);
    if (!on) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    Side side{};
    if (const cudaError_t bad = Look(call, "the destination", to, bytes, &side); bad != cudaSuccess) return bad;
    if (side == Side::kPageable) return call.Misuse(cudaErrorInvalidValue, "pageable memory");
    cudaMemsetParams set{};
    set.dst = to;
    set.value = static_cast<unsigned char>(value);
    set.elementSize = 1;
    set.width = bytes;
    set.height = 1;
    return Issue(call, *on, set);
  });
}

}  // extern "C"
