// Description: what a push of the C API says of its op, in the types of C++; and the parameter that comes with it.
//
// Threads:   values of one call. Ownership: a Param owns its parameter until it is disowned; all else belongs to the
//            caller.
// Errors:    UsageError that begins with the op's name and the line of its push.
#pragma once

#include <algorithm>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "c_api/internal.h"
#include "order/error_record.h"

namespace engine::capi {

// Param: a parameter and its deleter. The deleter runs once, on the thread where the closure is destroyed.
class Param {
 public:
  Param(void* param, EngineDeleter deleter) noexcept : param_(param), deleter_(deleter) {}
  Param(Param&& other) noexcept : param_(other.param_), deleter_(std::exchange(other.deleter_, nullptr)) {}
  ~Param() {
    if (deleter_) deleter_(param_);
  }
  void* get() const noexcept { return param_; }
  void Disown() noexcept { deleter_ = nullptr; }

 private:
  void* param_;
  EngineDeleter deleter_;
};

// VarList: the VarRefs of a call's handles. A few need no allocation.
class VarList {
 public:
  explicit VarList(size_t most) {
    if (most > kInline) heap_ = std::make_unique<std::byte[]>(most * sizeof(VarRef));
    data_ = reinterpret_cast<VarRef*>(heap_ ? heap_.get() : inline_);
  }
  std::span<const VarRef> Append(std::span<const EngineVar> vars, const char* mode) {
    VarRef* const first = data_ + size_;
    for (size_t i = 0; i < vars.size(); ++i) {
      const Var* var = HandleKind<EngineVar>::table.Peek(ToBits(vars[i]));
      if (!var) Refuse(mode, i, vars[i]);
      ::new (static_cast<void*>(data_ + size_++)) VarRef(*var);
    }
    return {first, vars.size()};
  }

 private:
  [[noreturn, gnu::cold]] static void Refuse(const char* mode, size_t index, EngineVar var) {
    throw UsageError(std::string(mode) + "[" + std::to_string(index) + "]: " + WhyRefused(var, "variable"));
  }

  static constexpr size_t kInline = 16;
  alignas(VarRef) std::byte inline_[kInline * sizeof(VarRef)];
  std::unique_ptr<std::byte[]> heap_;
  VarRef* data_;
  size_t size_ = 0;
};

inline Placement ToPlacement(EnginePlacement place, uint32_t gpu_lane) {
  static_assert(ENGINE_PLACE_CPU == static_cast<int>(Placement::Kind::kDefault) &&
                ENGINE_PLACE_POOL == static_cast<int>(Placement::Kind::kPool) &&
                ENGINE_PLACE_IO == static_cast<int>(Placement::Kind::kIo) &&
                ENGINE_PLACE_COPY_IN == static_cast<int>(Placement::Kind::kCopyIn) &&
                ENGINE_PLACE_COPY_OUT == static_cast<int>(Placement::Kind::kCopyOut) &&
                ENGINE_PLACE_GPU == static_cast<int>(Placement::Kind::kGpu) &&
                ENGINE_PLACE_COMMUNICATOR == static_cast<int>(Placement::Kind::kCommunicator));
  if (place.kind > ENGINE_PLACE_COMMUNICATOR)
    throw UsageError("unknown placement kind " + std::to_string(place.kind) +
                     "; ENGINE_PLACE_CPU (0) to ENGINE_PLACE_COMMUNICATOR (" +
                     std::to_string(ENGINE_PLACE_COMMUNICATOR) + ") are allowed");
  if (place.index > UINT16_MAX)
    throw UsageError("the placement's index is " + std::to_string(place.index) + "; the most is 65535");
  if (gpu_lane != 0 && place.kind != ENGINE_PLACE_GPU)
    throw UsageError("gpu_lane is " + std::to_string(gpu_lane) + ", but the op is not placed on a GPU; leave it 0");
  // The engine checks which lanes exist. A number that does not fit the field becomes one that does not exist either.
  const auto lane = gpu_lane == 0 ? Placement::kAnyLane : static_cast<uint8_t>(std::min<uint32_t>(gpu_lane - 1, 0xfe));
  return {static_cast<Placement::Kind>(place.kind), static_cast<uint16_t>(place.index), lane};
}

// Description: an op's description in the types of C++, valid during the call.
class Description {
 public:
  explicit Description(const EngineOpDesc* given)
      : op_(Read(Required(given, "the op's description"))), refs_(CountVars()), site_(ToSite(op_.site)) {
    desc_.name = InternText(op_.name);
    try {
      desc_.reads = refs_.Append({op_.reads, static_cast<size_t>(op_.num_reads)}, "reads");
      desc_.updates = refs_.Append({op_.updates, static_cast<size_t>(op_.num_updates)}, "updates");
      desc_.writes = refs_.Append({op_.writes, static_cast<size_t>(op_.num_writes)}, "writes");
      desc_.place = ToPlacement(op_.place, op_.gpu_lane);
      desc_.priority = op_.priority;
      if (const uint32_t unknown =
              (op_.flags & ~uint32_t{ENGINE_OP_RUN_ALWAYS | ENGINE_OP_ONE_CALL}) | op_.reserved | op_.reserved_lane) {
        throw UsageError("unknown flags " + std::to_string(unknown) +
                         "; ENGINE_OP_RUN_ALWAYS and ENGINE_OP_ONE_CALL are allowed, and reserved fields are 0");
      }
      desc_.graph = {op_.graph_kind, op_.graph_params, (op_.flags & ENGINE_OP_ONE_CALL) != 0};
      desc_.run_always = (op_.flags & ENGINE_OP_RUN_ALWAYS) != 0;
      if (op_.cancel) desc_.cancel = &Live(op_.cancel);
    } catch (const UsageError& e) {
      throw UsageError(Where() + e.what());
    }
  }
  const OpDesc& desc() const noexcept { return desc_; }
  Site site() const noexcept { return site_; }
  // "op 'load' pushed at main.c:12: "
  std::string Where() const {
    const char* const name = op_.name ? op_.name : "";
    return (op_.site.file ? detail::OpAt(name, {op_.site.file, op_.site.line}) : detail::OpText(name)) + ": ";
  }

 private:
  const EngineOpDesc& Read(const EngineOpDesc& given) {
    if (given.struct_size == sizeof(EngineOpDesc)) return given;
    copy_ = {};
    ReadStruct(given, copy_, "EngineOpDesc");
    return copy_;
  }
  size_t CountVars() const try {
    return CheckedCount(op_.num_reads, op_.reads, "reads") + CheckedCount(op_.num_updates, op_.updates, "updates") +
           CheckedCount(op_.num_writes, op_.writes, "writes");
  } catch (const UsageError& e) {
    throw UsageError(Where() + e.what());
  }

  EngineOpDesc copy_;  // used if the caller's struct has another size than ours
  const EngineOpDesc& op_;
  VarList refs_;
  Site site_;
  OpDesc desc_;
};

}  // namespace engine::capi
