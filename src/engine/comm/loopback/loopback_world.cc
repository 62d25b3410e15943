#include "comm/loopback/loopback_world.h"

#include <algorithm>
#include <cstring>

namespace engine::detail {
namespace {

using Kind = Collective::Kind;

bool ToPeer(const Collective& c) { return c.kind == Kind::kSend || c.kind == Kind::kRecv; }
bool Reduces(const Collective& c) { return c.kind == Kind::kAllReduce || c.kind == Kind::kReduceScatter; }

std::string Text(const Collective& c) {
  std::string text =
      std::string(CollectiveName(c.kind)) + " of " + std::to_string(c.count) + " " + DataTypeName(c.type);
  static constexpr const char* kReductions[] = {"sum", "product", "max", "min", "average"};
  if (Reduces(c)) text += std::string(" (") + kReductions[static_cast<size_t>(c.reduction)] + ")";
  if (c.kind == Kind::kBroadcast) text += " from rank " + std::to_string(c.peer);
  return text;
}
std::string Text(const std::vector<Collective>& calls) {
  std::string text;
  for (const Collective& c : calls) text += (text.empty() ? "" : " and ") + Text(c);
  return text;
}

bool Same(const Collective& a, const Collective& b) {
  return a.kind == b.kind && a.type == b.type && a.count == b.count && (!Reduces(a) || a.reduction == b.reduction) &&
         (a.kind != Kind::kBroadcast || a.peer == b.peer);
}
bool Same(const std::vector<Collective>& a, const std::vector<Collective>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Collective& x, const Collective& y) { return Same(x, y); });
}

constinit Mutex g_worlds_mu;
std::map<std::array<unsigned char, 128>, std::shared_ptr<LoopbackWorld>>& Worlds() REQUIRES(g_worlds_mu) {
  // Never destroyed, because threads may outlive statics.
  static auto* worlds = new std::map<std::array<unsigned char, 128>, std::shared_ptr<LoopbackWorld>>;
  return *worlds;
}

}  // namespace

void LockLoopbackWorlds() NO_THREAD_SAFETY_ANALYSIS { g_worlds_mu.Lock(); }
void UnlockLoopbackWorlds() NO_THREAD_SAFETY_ANALYSIS { g_worlds_mu.Unlock(); }

std::shared_ptr<LoopbackWorld> LoopbackWorld::Of(const CommunicatorId& id) {
  MutexLock lock(g_worlds_mu);
  std::shared_ptr<LoopbackWorld>& world = Worlds()[id.bytes];
  if (!world) world = std::make_shared<LoopbackWorld>();
  return world;
}

void LoopbackWorld::Forget(const CommunicatorId& id) {
  MutexLock lock(g_worlds_mu);
  Worlds().erase(id.bytes);
}

LoopbackWorld::Rank& LoopbackWorld::At(int rank) {
  if (ranks_.size() <= static_cast<size_t>(rank)) ranks_.resize(static_cast<size_t>(rank) + 1);
  return ranks_[static_cast<size_t>(rank)];
}

void LoopbackWorld::Expect(int rank) {
  MutexLock lock(mu_);
  static_cast<void>(At(rank));
}

void LoopbackWorld::Plant(int rank, uint64_t nth, LoopbackFault fault) {
  MutexLock lock(mu_);
  At(rank).faults[nth] = fault;
}

void LoopbackWorld::Join(int rank, int size) {
  MutexLock lock(mu_);
  std::string wrong;
  if (size_ == 0) size_ = size;
  if (size != size_) {
    wrong = "rank " + std::to_string(rank) + " came for " + std::to_string(size) + " ranks, an earlier one for " +
            std::to_string(size_);
  } else if (At(rank).joined) {
    wrong = "rank " + std::to_string(rank) + " came twice";
  } else if (!failure_.empty()) {
    wrong = failure_;
  }
  if (wrong.empty()) {
    At(size - 1);
    At(rank).joined = true;
    return;
  }
  Fail(wrong);
  throw CommunicatorError(wrong);
}

LoopbackWorld::Planted LoopbackWorld::Count(int rank) {
  MutexLock lock(mu_);
  if (!failure_.empty()) throw CommunicatorError(failure_);
  Rank& mine = At(rank);
  Planted out{.push = ++mine.pushes};
  if (const auto at = mine.faults.find(out.push); at != mine.faults.end()) {
    out.any = true;
    out.fault = at->second;
  }
  return out;
}

void LoopbackWorld::Fail(const std::string& why) {
  if (failure_.empty()) failure_ = why;
}

std::string LoopbackWorld::failure() const {
  MutexLock lock(mu_);
  return failure_;
}

void LoopbackWorld::Run(int rank, const std::vector<Collective>& group, Planted planted) {
  MutexLock lock(mu_);
  Visit visit{rank};
  if (planted.any && planted.fault == LoopbackFault::kAsyncError)
    Fail("a planted asynchronous error, at push " + std::to_string(planted.push) + " of rank " + std::to_string(rank));
  const bool hangs = planted.any && planted.fault == LoopbackFault::kNeverComes;
  if (hangs || !failure_.empty()) {
    ++visit.open;  // it never ends
  } else if (!At(rank).gone) {
    Part part{&visit, {}};
    for (const Collective& c : group)
      if (!ToPeer(c)) part.calls.push_back(c);
    if (!part.calls.empty()) {
      ++visit.open;
      Meet(std::move(part));
    }
    for (const Collective& c : group)
      if (ToPeer(c)) {
        ++visit.open;
        Exchange(&visit, c);
      }
  }
  while (visit.open != 0 && !At(rank).gone) changed_.Wait(mu_);
}

void LoopbackWorld::Meet(Part part) {
  const int rank = part.visit->rank;
  const uint64_t number = At(rank).meetings++;
  std::vector<Part>& parts = meetings_[number];
  parts.resize(static_cast<size_t>(size_));
  const auto first = std::find_if(parts.begin(), parts.end(), [](const Part& p) { return p.visit != nullptr; });
  const std::string where = "collective " + std::to_string(number + 1) + ": ";
  if (first != parts.end() && !Same(first->calls, part.calls))
    return Fail(where + "rank " + std::to_string(rank) + " calls " + Text(part.calls) + ", rank " +
                std::to_string(first->visit->rank) + " called " + Text(first->calls));
  for (size_t r = 0; r < parts.size(); ++r)
    if (ranks_[r].gone && !parts[r].visit)
      return Fail(where + "rank " + std::to_string(r) + " had left before it came to " + Text(part.calls));
  parts[static_cast<size_t>(rank)] = std::move(part);
  if (std::any_of(parts.begin(), parts.end(), [](const Part& p) { return p.visit == nullptr; })) return;
  Perform(parts);
  for (const Part& p : parts) --p.visit->open;
  meetings_.erase(number);
  changed_.NotifyAll();
}

void LoopbackWorld::Perform(const std::vector<Part>& parts) {
  const size_t n = parts.size();
  for (size_t i = 0; i < parts[0].calls.size(); ++i) {
    const Collective& call = parts[0].calls[i];
    const size_t bytes = call.count * SizeOf(call.type);
    if (bytes == 0) continue;
    std::vector<const void*> inputs;
    for (const Part& p : parts) inputs.push_back(p.calls[i].send);
    // Results are first kept aside, because a rank's two buffers may be the same.
    const bool scatters = call.kind == Kind::kReduceScatter, gathers = call.kind == Kind::kAllGather;
    std::vector<std::byte> result(scatters || gathers ? n * bytes : bytes);
    if (Reduces(call)) {
      ReduceInto(result.data(), inputs, scatters ? n * call.count : call.count, call.type, call.reduction);
    } else if (gathers) {
      for (size_t r = 0; r < n; ++r) std::memcpy(result.data() + r * bytes, inputs[r], bytes);
    } else {
      std::memcpy(result.data(), inputs[static_cast<size_t>(call.peer)], bytes);
    }
    for (size_t r = 0; r < n; ++r)
      std::memcpy(parts[r].calls[i].recv, result.data() + (scatters ? r * bytes : 0), gathers ? n * bytes : bytes);
  }
}

void LoopbackWorld::Exchange(Visit* visit, const Collective& call) {
  const bool sends = call.kind == Kind::kSend;
  const std::pair<int, int> path = sends ? std::pair(visit->rank, call.peer) : std::pair(call.peer, visit->rank);
  std::deque<Part>& others = sends ? recvs_[path] : sends_[path];
  if (others.empty()) {
    if (At(call.peer).gone)
      return Fail("rank " + std::to_string(call.peer) + " had left before it came to the other side of rank " +
                  std::to_string(visit->rank) + "'s " + Text(call));
    (sends ? sends_ : recvs_)[path].push_back({visit, {call}});
    return;
  }
  const Part other = std::move(others.front());
  others.pop_front();
  const Collective& theirs = other.calls[0];
  if (theirs.count != call.count || theirs.type != call.type)
    return Fail("rank " + std::to_string(visit->rank) + " calls " + Text(call) + " with rank " +
                std::to_string(call.peer) + ", which called " + Text(theirs));
  const size_t bytes = call.count * SizeOf(call.type);
  if (bytes != 0) std::memcpy(sends ? theirs.recv : call.recv, sends ? call.send : theirs.send, bytes);
  --visit->open;
  --other.visit->open;
  changed_.NotifyAll();
}

void LoopbackWorld::Leave(int rank, const std::string& why) noexcept {
  MutexLock lock(mu_);
  ranks_[static_cast<size_t>(rank)].gone = true;
  const auto waited_for = [&](const std::map<std::pair<int, int>, std::deque<Part>>& posts, bool from) {
    return std::any_of(posts.begin(), posts.end(), [&](const auto& p) {
      return !p.second.empty() && (from ? p.first.first : p.first.second) == rank;
    });
  };
  const bool left_alone = !meetings_.empty() || waited_for(sends_, false) || waited_for(recvs_, true);
  try {
    const std::string who = "rank " + std::to_string(rank);
    if (!why.empty()) Fail(who + " was aborted: " + why);
    if (left_alone) Fail(who + " left, and others wait for it");
  } catch (const std::bad_alloc&) {
    if (failure_.empty()) failure_ = "a rank left";  // needs no memory
  }
  changed_.NotifyAll();
}

bool LoopbackWorld::Deserted() const {
  MutexLock lock(mu_);
  return size_ != 0 && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.joined && r.gone; });
}

}  // namespace engine::detail
