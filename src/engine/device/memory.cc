#include "device/memory.h"

#include <algorithm>
#include <bit>

#include "base/fork.h"
#include "core/core.h"
#include "device/body_scope.h"
#include "device/bulk_graphs.h"

namespace engine {

void DeviceMemory::Reset() noexcept {
  if (block_) pool_->Give(std::exchange(block_, nullptr));
  pool_.reset();
}
void* DeviceMemory::data() const noexcept { return block_ ? block_->data : nullptr; }
size_t DeviceMemory::bytes() const noexcept { return block_ ? block_->bytes : 0; }

DeviceMemory RunContext::Allocate(size_t bytes) {
  (void)stream();  // refuses ops that have none
  detail::DeviceLane& on = detail::DevicesOf(*core_).lane(op_->extra.lane);
  if (const detail::BodyFrame* f = detail::t_frame; f && f->stream)
    throw DeviceError(DeviceStatus::Fail(DeviceCode::kCaptureMode, false, 0,
                                         "Allocate in op '" + std::string(name()) + "', which is being captured"));
  return on.device->memory->Take(bytes, on);
}
DeviceMemory RunContext::AllocatePinned(size_t bytes) {
  (void)stream();
  detail::DeviceLane& on = detail::DevicesOf(*core_).lane(op_->extra.lane);
  return on.device->pinned->Take(bytes, on);
}

void* RunContext::LaneLocal(const void* key, std::shared_ptr<void> (*make)(RunContext&)) {
  (void)stream();
  detail::DeviceLane& on = detail::DevicesOf(*core_).lane(op_->extra.lane);
  const detail::BodyFrame* const frame = detail::t_frame;
  const bool captures = frame && frame->stream;
  const auto find = [&]() -> void* {
    detail::MutexLock lock(on.mu);
    for (auto& [k, value] : on.locals)
      if (k == key) return value.get();
    return nullptr;
  };
  if (captures) on.device->graphs->NoteLaneLocal(find() == nullptr);
  if (void* found = find()) return found;
  if (captures)
    throw DeviceError(DeviceStatus::Fail(DeviceCode::kCaptureMode, false, 0,
                                         "the first LaneLocal of a lane in op '" + std::string(name()) +
                                             "', which is being captured: it is run as it is, first"));
  const detail::BodyScope ours;              // what a library does to set itself up is not the op's
  std::shared_ptr<void> made = make(*this);  // may be slow, may throw, may allocate
  detail::MutexLock lock(on.mu);
  for (auto& [k, value] : on.locals)
    if (k == key) return value.get();  // a stand-in was faster
  on.locals.emplace_back(key, std::move(made));
  return on.locals.back().second.get();
}

namespace detail {

DeviceStatus Devices::Synchronize(DeviceState& device) {
  for (uint32_t i = 0; i < lanes(); ++i) {
    DeviceLane& on = lane(i);
    // What waits for a peer may wait for ever, if the peer waits for us.
    if (on.device != &device || OfChannel(on) ||
        on.issued.load(std::memory_order_acquire) == on.retired.load(std::memory_order_acquire))
      continue;
    if (DeviceStatus s = Synchronize(on); !s.ok()) return s;
  }
  return {};
}

DeviceStatus Devices::Synchronize(DeviceLane& on) {
  const uint64_t issued = on.issued.load(std::memory_order_acquire);
  host_syncs_.fetch_add(1, std::memory_order_relaxed);
  const BodyScope ours;
  DeviceStatus s = on.device->device->Synchronize(on.stream);
  if (s.ok() && rescued_.load() == 0) RetireUpTo(on, issued);
  return s;
}

void Devices::PointsNow(const DeviceState& device, std::vector<OrderPoint>* points) {
  points->clear();
  for (const BodyFrame* f = t_frame; f; f = f->outer) {
    if (f->core != &core_ || !(f->op->extra.flags & kDeviceOp)) continue;
    const DeviceLane& on = lane(f->op->extra.lane);
    if (on.device != &device) break;
    points->push_back({on.issued.load(std::memory_order_acquire) + 1, on.id});  // the number that the op will have
    return;
  }
  if (t_retiring) return;
  for (uint32_t i = 0; i < lanes(); ++i) {
    const DeviceLane& on = lane(i);
    const uint64_t issued = on.issued.load(std::memory_order_acquire);
    if (on.device == &device && issued && !on.Retired(issued)) points->push_back({issued, i});
  }
}

size_t MemoryPool::ClassOf(size_t bytes) {
  constexpr size_t kLeast = 512;
  if (bytes <= kLeast) return kLeast;
  const size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

MemoryBlock* MemoryPool::Find(size_t size, DeviceLane& on) {
  LaneClock clock;
  {
    MutexLock lock(on.mu);
    clock = on.clock;
  }
  Devices::WaitPoints wait_for;
  MemoryBlock* found = nullptr;
  Devices* devices = nullptr;  // there as long as an op runs
  {
    MutexLock lock(mu_);
    devices = devices_;
    auto& blocks = free_[size];
    if (blocks.empty()) return nullptr;
    const auto passed = [&](const OrderPoint& p) {
      if (devices->lane(p.lane).Retired(p.seq)) return true;
      return !pinned_ && (p.lane == on.id || clock[p.lane] >= p.seq);
    };
    const auto covered = [&](const MemoryBlock* b) { return std::all_of(b->behind.begin(), b->behind.end(), passed); };
    auto at = std::find_if(blocks.rbegin(), blocks.rend(), covered);
    if (at == blocks.rend()) {
      if (pinned_) return nullptr;
      at = blocks.rend() - 1;
      for (const OrderPoint& p : (*at)->behind) wait_for.Add(p);
    }
    found = *at;
    blocks.erase(std::next(at).base());
  }
  if (wait_for.lanes) {
    if (DeviceStatus s = devices->Order(on, wait_for); !s.ok()) {
      MutexLock lock(mu_);
      free_[size].push_back(found);
      throw DeviceError(std::move(s));
    }
  }
  found->behind.clear();
  return found;
}

DeviceStatus MemoryPool::Create(size_t size, Stream stream, MemoryBlock* block) {
  DeviceStatus s =
      pinned_ ? device_->AllocatePinned(size, &block->data) : device_->Allocate(size, stream, &block->data);
  if (!s.ok()) return s;
  block->bytes = size;
  bytes_.fetch_add(size, std::memory_order_relaxed);
  return s;
}

DeviceMemory MemoryPool::Take(size_t bytes, DeviceLane& on) {
  const size_t size = ClassOf(bytes);
  DeviceMemory out;
  out.pool_ = shared_from_this();
  if ((out.block_ = Find(size, on))) return out;
  on.device->devices->AskOwners();  // ops that have ended may hold some
  auto block = std::make_unique<MemoryBlock>();
  DeviceStatus s = Create(size, on.stream, block.get());
  // Out of memory, a bounded number of times: without what lies here unused; then with all that was issued ended.
  for (int attempt = 0; s.code() == DeviceCode::kOutOfMemory && attempt < 2; ++attempt) {
    Devices& devices = *on.device->devices;
    DeviceStatus done;
    if (attempt == 1) done = devices.Synchronize(*state_);
    DropFree(on.stream);
    if (attempt == 1 && done.ok()) done = devices.Synchronize(on);  // what was just freed is free then
    if (!done.ok()) throw DeviceError(std::move(done));
    (void)device_->TrimPool(0);
    (void)device_->TakeLastError();  // dealt with here: the op's own check must not find it
    s = Create(size, on.stream, block.get());
  }
  if (!s.ok()) {
    if (s.sticky()) on.device->devices->Lose(*state_, s);
    throw DeviceError(std::move(s));
  }
  out.block_ = block.release();
  return out;
}

void MemoryPool::Give(MemoryBlock* block) noexcept {
  if (forks_ != Forks()) return;  // the parent has the device and the memory; the lock may be held for ever
  {
    MutexLock lock(mu_);
    if (devices_) {
      devices_->PointsNow(*state_, &block->behind);
      free_[block->bytes].push_back(block);
      return;
    }
    if (lost_) {  // its memory went with it
      delete block;
      return;
    }
  }
  Stream stream;  // the engine has gone, with all lanes
  if (!pinned_ && !device_->CreateStream(0, &stream).ok()) return;
  Destroy(block, stream);
  if (!pinned_) (void)device_->DestroyStream(stream);
}

void MemoryPool::Destroy(MemoryBlock* block, Stream stream) noexcept {
  (void)(pinned_ ? device_->FreePinned(block->data) : device_->Free(block->data, stream));
  bytes_.fetch_sub(block->bytes, std::memory_order_relaxed);
  delete block;
}

// What nothing uses any more goes back to the driver. Not pinned memory beside a communicator: the driver frees it only when
// all that is on the device has ended, and a collective may wait there for a peer that waits for whoever asks us.
void MemoryPool::DropFree(Stream stream) {
  std::vector<MemoryBlock*> dropped;
  {
    MutexLock lock(mu_);
    if (pinned_ && devices_->HasChannelOn(*state_)) return;
    for (auto& [size, blocks] : free_) {
      const auto unused = std::stable_partition(blocks.begin(), blocks.end(), [&](const MemoryBlock* b) REQUIRES(mu_) {
        return !std::all_of(b->behind.begin(), b->behind.end(),
                            [&](const OrderPoint& p) REQUIRES(mu_) { return devices_->lane(p.lane).Retired(p.seq); });
      });
      dropped.insert(dropped.end(), unused, blocks.end());
      blocks.erase(unused, blocks.end());
    }
  }
  for (MemoryBlock* block : dropped) Destroy(block, stream);
}

// Everything has ended. `stream`: any; null if the device is gone.
void MemoryPool::Close(Stream stream) {
  std::vector<MemoryBlock*> all;
  {
    MutexLock lock(mu_);
    lost_ = state_->gone();
    devices_ = nullptr;
    for (auto& [size, blocks] : free_) all.insert(all.end(), blocks.begin(), blocks.end());
    free_.clear();
  }
  for (MemoryBlock* block : all) {
    if (lost_) {
      delete block;
    } else {
      Destroy(block, stream);
    }
  }
}

}  // namespace detail
}  // namespace engine
