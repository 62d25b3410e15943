// Loopback: each push of a rank is a kernel on a software device's stream; the kernels meet in a LoopbackWorld.
#include <unistd.h>

#include <cstdio>

#include "comm/backend.h"
#include "comm/loopback/loopback_world.h"
#include "engine/testing/software_device.h"

namespace engine {
namespace detail {
namespace {

class LoopbackBackend final : public CommBackend {
 public:
  explicit LoopbackBackend(const CommunicatorOptions& options)
      : id_(options.id), rank_(options.rank), size_(options.size), world_(LoopbackWorld::Of(options.id)) {
    world_->Expect(rank_);
  }
  ~LoopbackBackend() override {
    world_->Leave(rank_, "");
    if (world_->Deserted()) LoopbackWorld::Forget(id_);
  }

  void Join() override { world_->Join(rank_, size_); }
  void Issue(RunContext& ctx, std::span<const Collective> group) override {
    const LoopbackWorld::Planted planted = world_->Count(rank_);
    if (planted.any && planted.fault == LoopbackFault::kCallFails)
      throw CommunicatorError("a planted fault: push " + std::to_string(planted.push) + " of rank " +
                              std::to_string(rank_) + " is refused");
    SoftwareKernel kernel{.name = ctx.name(), .cost = {}, .body = {}, .uses = {}};
    for (const Collective& c : group) AddUses(c, &kernel.uses);
    kernel.body = [world = world_, rank = rank_, calls = std::vector(group.begin(), group.end()), planted] {
      world->Run(rank, calls, planted);
    };
    DeviceStatus status = static_cast<SoftwareDevice&>(ctx.device()).Launch(ctx.stream(), std::move(kernel));
    if (!status.ok()) throw DeviceError(std::move(status));
  }
  std::string AsyncError() override { return world_->failure(); }
  void Abort(const std::string& why) noexcept override { world_->Leave(rank_, why); }
  bool Leave() noexcept override {
    world_->Leave(rank_, "");
    return true;
  }

 private:
  void AddUses(const Collective& c, std::vector<BufferUse>* uses) const {
    const size_t bytes = c.count * SizeOf(c.type), all = bytes * static_cast<size_t>(size_);
    if (bytes == 0) return;
    using Kind = Collective::Kind;
    if (c.kind != Kind::kRecv && (c.kind != Kind::kBroadcast || c.peer == rank_))
      uses->push_back({c.send, c.kind == Kind::kReduceScatter ? all : bytes, false});
    if (c.kind != Kind::kSend) uses->push_back({c.recv, c.kind == Kind::kAllGather ? all : bytes, true});
  }

  const CommunicatorId id_;
  const int rank_, size_;
  const std::shared_ptr<LoopbackWorld> world_;
};

}  // namespace

std::unique_ptr<CommBackend> MakeLoopbackBackend(const Membership& membership, Device& device) {
  const CommunicatorOptions& options = membership.options;
  const auto* software = dynamic_cast<const SoftwareDevice*>(&device);
  if (!software)
    throw CommunicatorError("communicator '" + options.name + "': there is no library for devices of kind '" +
                            device.info().kind + "'; cuda and software are known");
  if (options.size > 1 && software->clock() == SoftwareDeviceOptions::Clock::kVirtual)
    throw CommunicatorError("communicator '" + options.name + "' of " + std::to_string(options.size) +
                            " ranks on a device with a virtual clock, where nobody can wait; one rank may be there");
  return std::make_unique<LoopbackBackend>(options);
}

CommunicatorId NewLoopbackId() {
  static std::atomic<uint64_t> next{1};
  CommunicatorId id;
  // relaxed: the number only has to be unique.
  std::snprintf(reinterpret_cast<char*>(id.bytes.data()), id.bytes.size(), "loopback %d %llu", getpid(),
                static_cast<unsigned long long>(next.fetch_add(1, std::memory_order_relaxed)));
  return id;
}

}  // namespace detail

void PlantLoopbackFault(const CommunicatorId& id, int rank, uint64_t nth, LoopbackFault fault) {
  if (rank < 0 || nth == 0)
    throw UsageError("PlantLoopbackFault: rank " + std::to_string(rank) + ", push " + std::to_string(nth) +
                     "; ranks count from 0, pushes from 1");
  detail::LoopbackWorld::Of(id)->Plant(rank, nth, fault);
}

}  // namespace engine
