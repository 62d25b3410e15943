#include "support/happens_before.h"

#include <algorithm>

namespace engine::test {

void HappensBefore::Join(VectorClock& into, const VectorClock& from) {
  for (const auto& [lane, time] : from) into[lane] = std::max(into[lane], time);
}

uint64_t HappensBefore::Tick(uint32_t lane) {
  if (lane != kHost) Join(lanes_[lane], lanes_[kHost]);
  return ++lanes_[lane][lane];
}

void HappensBefore::HostAccess(const std::string& name, const void* memory, size_t bytes, bool writes) {
  std::lock_guard lock(mu_);
  Touch(name, kHost, Tick(kHost), memory, bytes, writes ? Kind::kWrite : Kind::kRead);
}

void HappensBefore::OnWork(uint32_t lane, const SoftwareKernel& work) {
  std::lock_guard lock(mu_);
  const uint64_t time = Tick(lane);
  for (const BufferUse& use : work.uses) {
    Touch(work.name, lane, time, use.memory, use.bytes, use.writes ? Kind::kWrite : Kind::kRead);
  }
}

void HappensBefore::OnRecord(uint64_t event, uint32_t lane) {
  std::lock_guard lock(mu_);
  events_[event] = lanes_[lane];
}

void HappensBefore::OnWait(uint32_t lane, uint64_t event) {
  std::lock_guard lock(mu_);
  if (const auto it = events_.find(event); it != events_.end()) Join(lanes_[lane], it->second);
}

void HappensBefore::OnHostSync(uint64_t event) {
  std::lock_guard lock(mu_);
  if (const auto it = events_.find(event); it != events_.end()) Join(lanes_[kHost], it->second);
}

void HappensBefore::OnForget(uint64_t event) {
  std::lock_guard lock(mu_);
  events_.erase(event);
}

void HappensBefore::OnAllocate(uint32_t lane, const void* memory, size_t bytes) {
  std::lock_guard lock(mu_);
  Touch("Allocate", lane, Tick(lane), memory, bytes, Kind::kAllocate);
}

void HappensBefore::OnFree(uint32_t lane, const void* memory, size_t bytes) {
  std::lock_guard lock(mu_);
  Touch("Free", lane, Tick(lane), memory, bytes, Kind::kFree);
}

// Afterwards no run of bytes reaches across the address.
void HappensBefore::SplitAt(uintptr_t address) {
  auto it = memory_.upper_bound(address);
  if (it == memory_.begin()) return;
  --it;
  if (it->first == address || it->second.end <= address) return;
  Bytes upper = it->second;
  it->second.end = address;
  memory_.emplace(address, std::move(upper));
}

void HappensBefore::Touch(const std::string& name, uint32_t lane, uint64_t time, const void* memory, size_t bytes,
                          Kind kind) {
  if (bytes == 0) return;
  ++checked_;
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t end = begin + bytes;
  const Access now{name, lane, time, kind == Kind::kFree};
  SplitAt(begin);
  SplitAt(end);
  auto it = memory_.lower_bound(begin);
  for (uintptr_t at = begin; at < end; it = std::next(it)) {
    if (it == memory_.end() || it->first > at) {  // never touched
      const uintptr_t until = it == memory_.end() ? end : std::min(end, it->first);
      it = memory_.emplace_hint(it, at, Bytes{until, {}, {}});
    }
    Bytes& run = it->second;
    at = run.end;
    if (kind == Kind::kAllocate) {  // the allocator vouches for what was there before
      run.write = now;
      run.reads.clear();
      continue;
    }
    if (run.write.time != 0) {
      if (run.write.freed) {
        races_.push_back("'" + name + "' uses memory behind '" + run.write.name + "' of it");
      } else {
        Compare(run.write, "wrote", now, kind == Kind::kRead ? "reads" : "writes");
      }
    }
    if (kind == Kind::kRead) {
      std::erase_if(run.reads, [&](const Access& read) { return read.lane == lane; });
      run.reads.push_back(now);
      continue;
    }
    for (const Access& read : run.reads) Compare(read, "read", now, "writes");
    run.write = now;
    run.reads.clear();
  }
}

void HappensBefore::Compare(const Access& before, const char* did, const Access& now, const char* does) {
  const VectorClock& knows = lanes_[now.lane];
  const auto it = knows.find(before.lane);
  if (it != knows.end() && it->second >= before.time) return;
  const auto where = [](const Access& access) {
    return access.lane == kHost ? std::string("the host") : "lane " + std::to_string(access.lane);
  };
  std::string race = "'" + now.name + "' on " + where(now) + " " + does + " what '" + before.name + "' on " +
                     where(before) + " " + did + ", and nothing orders them";
  if (std::find(races_.begin(), races_.end(), race) == races_.end()) races_.push_back(std::move(race));
}

std::vector<std::string> HappensBefore::races() const {
  std::lock_guard lock(mu_);
  return races_;
}

uint64_t HappensBefore::checked() const {
  std::lock_guard lock(mu_);
  return checked_;
}

}  // namespace engine::test
