#include "device/memory.h"

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
    if (k == key) return value.get();  // another thread, a stand-in, has made it meanwhile
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

void Devices::PointsNow(const DeviceState& device, WaitPoints* points) noexcept {
  *points = {};
  for (const BodyFrame* f = t_frame; f; f = f->outer) {
    if (f->core != &core_ || f->over || !(f->op->extra.flags & kDeviceOp)) continue;
    const DeviceLane& on = lane(f->op->extra.lane);
    if (on.device != &device) break;
    points->Add({on.issued.load(std::memory_order_acquire) + 1, on.id});  // the number that the op will have
    return;
  }
  if (t_retiring == this) return;
  for (uint32_t i = 0; i < lanes(); ++i) {
    const DeviceLane& on = lane(i);
    const uint64_t issued = on.issued.load(std::memory_order_acquire);
    if (on.device == &device && issued && !on.Retired(issued)) points->Add({issued, i});
  }
}

size_t MemoryPool::ClassOf(size_t bytes) {
  constexpr size_t kLeast = 512;
  if (bytes <= kLeast) return kLeast;
  const size_t step = std::bit_floor(bytes - 1) / 4;
  if (bytes > SIZE_MAX - step) return bytes;  // the next class is beyond all numbers; no device has as much
  return (bytes + step - 1) / step * step;
}

void FreeBlocks::Append(MemoryBlock* block) noexcept {
  block->older = newest;
  block->newer = nullptr;
  (newest ? newest->newer : oldest) = block;
  newest = block;
}

void FreeBlocks::Remove(MemoryBlock* block) noexcept {
  (block->older ? block->older->newer : oldest) = block->newer;
  (block->newer ? block->newer->older : newest) = block->older;
}

MemoryBlock* MemoryPool::Find(size_t size, DeviceLane& on) {
  LaneClock clock;
  {
    MutexLock lock(on.mu);
    clock = on.clock;
  }
  MemoryBlock* found = nullptr;
  Devices* devices = nullptr;  // there as long as an op runs
  bool waits = false;
  {
    MutexLock lock(mu_);
    devices = devices_;
    FreeBlocks& blocks = free_[size];
    if (!blocks.newest) return nullptr;
    const auto passed = [&](const OrderPoint& p) {
      if (devices->lane(p.lane).Retired(p.seq)) return true;
      return !pinned_ && (p.lane == on.id || clock[p.lane] >= p.seq);
    };
    found = blocks.newest;
    while (found && !found->behind.All(passed)) found = found->older;
    waits = !found;
    if (waits && pinned_) return nullptr;
    if (waits) found = blocks.oldest;
    blocks.Remove(found);
  }
  if (!waits) return found;
  try {
    if (DeviceStatus s = devices->Order(on, found->behind); !s.ok()) throw DeviceError(std::move(s));
  } catch (...) {
    MutexLock lock(mu_);
    free_[size].Append(found);
    throw;
  }
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
  if (forks_ != Forks()) return;  // the parent has the device and the memory; the lock may be taken for ever
  {
    MutexLock lock(mu_);
    if (devices_) {
      devices_->PointsNow(*state_, &block->behind);
      free_.find(block->bytes)->second.Append(block);  // mutant: give_back_needs_memory
      return;
    }
    if (lost_) {  // its memory went with it
      delete block;
      return;
    }
  }
  Stream stream;  // the engine has gone, with all lanes
  try {
    if (pinned_ || device_->CreateStream(0, &stream).ok()) Free(*block, stream);
    if (stream) (void)device_->DestroyStream(stream);
  } catch (
      const std::exception&) {  // a device in software may have no memory, or no thread; then the block stays with it
  }
  delete block;
}

void MemoryPool::Free(MemoryBlock& block, Stream stream) {
  (void)(pinned_ ? device_->FreePinned(block.data) : device_->Free(block.data, stream));
  bytes_.fetch_sub(block.bytes, std::memory_order_relaxed);
}

void MemoryPool::Destroy(MemoryBlock* block, Stream stream) noexcept {
  try {
    Free(*block, stream);
  } catch (const std::exception&) {  // as in Give
  }
  delete block;
}

// What nothing uses any more goes back to the driver. Not pinned memory beside a communicator: the driver frees it only when
// all that is on the device has ended, and a collective may wait there for a peer that waits for whoever asks us.
void MemoryPool::DropFree(Stream stream) {
  FreeBlocks dropped;
  {
    MutexLock lock(mu_);
    if (pinned_ && devices_->HasChannelOn(*state_)) return;
    const auto retired = [&devices = *devices_](const OrderPoint& p) { return devices.lane(p.lane).Retired(p.seq); };
    for (auto& [size, blocks] : free_)
      for (MemoryBlock *block = blocks.oldest, *next = nullptr; block; block = next) {
        next = block->newer;
        if (!block->behind.All(retired)) continue;
        blocks.Remove(block);
        dropped.Append(block);
      }
  }
  while (MemoryBlock* const block = dropped.oldest) {
    dropped.Remove(block);
    Destroy(block, stream);
  }
}

// Everything has ended. `stream`: any; null if the device is gone.
void MemoryPool::Close(Stream stream) {
  std::map<size_t, FreeBlocks> all;
  {
    MutexLock lock(mu_);
    lost_ = state_->gone();
    devices_ = nullptr;
    all.swap(free_);
  }
  for (auto& [size, blocks] : all)
    while (MemoryBlock* const block = blocks.oldest) {
      blocks.Remove(block);
      if (lost_) {
        delete block;
      } else {
        Destroy(block, stream);
      }
    }
}

}  // namespace detail
}  // namespace engine
