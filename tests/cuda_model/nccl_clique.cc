// Groups of the ranks of one clique meet here: collectives by their number on each rank, sends and receives pair by pair.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "control.h"
#include "nccl_model.h"

namespace nccl_model {
namespace {

const char* NameOf(Kind kind) {
  static constexpr const char* kNames[] = {"ncclAllReduce", "ncclBroadcast", "ncclReduceScatter",
                                           "ncclAllGather", "ncclSend",      "ncclRecv"};
  return kNames[static_cast<size_t>(kind)];
}

bool ToPeer(const Request& r) { return r.kind == Kind::kSend || r.kind == Kind::kRecv; }
bool Reduces(const Request& r) { return r.kind == Kind::kAllReduce || r.kind == Kind::kReduceScatter; }
bool Alike(const Request& a, const Request& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && (!Reduces(a) || a.op == b.op) &&
         (a.kind != Kind::kBroadcast || a.peer == b.peer);
}

std::string Describe(const std::vector<Request>& group) {
  std::string text;
  for (const Request& r : group) text += (text.empty() ? "" : " and ") + nccl_model::Describe(r);
  return text;
}

// Element is what lies in memory, Wide what is computed with.
template <class Element, class Wide>
void ReduceAs(void* result, const std::vector<const void*>& inputs, size_t count, ncclRedOp_t op) {
  for (size_t i = 0; i < count; ++i) {
    const auto at = [&](const void* input) { return static_cast<Wide>(static_cast<const Element*>(input)[i]); };
    Wide sum = at(inputs[0]);
    for (size_t k = 1; k < inputs.size(); ++k) {
      const Wide next = at(inputs[k]);
      if (op == ncclProd) {
        sum = static_cast<Wide>(sum * next);
      } else if (op == ncclMax || op == ncclMin) {
        sum = (op == ncclMax) == (sum < next) ? next : sum;
      } else {
        sum = static_cast<Wide>(sum + next);
      }
    }
    if (op == ncclAvg) sum = static_cast<Wide>(sum / static_cast<Wide>(inputs.size()));
    static_cast<Element*>(result)[i] = static_cast<Element>(sum);
  }
}

}  // namespace

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

std::string Describe(const Request& r) {
  std::string text = std::string(NameOf(r.kind)) + " of " + std::to_string(r.count) + " of type " +
                     std::to_string(static_cast<int>(r.type));
  if (Reduces(r)) text += ", reduction " + std::to_string(static_cast<int>(r.op));
  if (r.kind == Kind::kBroadcast) text += ", root " + std::to_string(r.peer);
  if (ToPeer(r)) text += ", peer " + std::to_string(r.peer);
  return text;
}

size_t BytesSent(const Request& r, int rank, int size) {
  if (r.kind == Kind::kRecv || (r.kind == Kind::kBroadcast && r.peer != rank)) return 0;
  return r.count * SizeOf(r.type) * (r.kind == Kind::kReduceScatter ? static_cast<size_t>(size) : 1);
}
size_t BytesReceived(const Request& r, int size) {
  if (r.kind == Kind::kSend) return 0;
  return r.count * SizeOf(r.type) * (r.kind == Kind::kAllGather ? static_cast<size_t>(size) : 1);
}

void Reduce(void* result, const std::vector<const void*>& inputs, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclInt8: return ReduceAs<int8_t, int64_t>(result, inputs, count, op);
    case ncclUint8: return ReduceAs<uint8_t, uint64_t>(result, inputs, count, op);
    case ncclInt32: return ReduceAs<int32_t, int64_t>(result, inputs, count, op);
    case ncclUint32: return ReduceAs<uint32_t, uint64_t>(result, inputs, count, op);
    case ncclInt64: return ReduceAs<int64_t, int64_t>(result, inputs, count, op);
    case ncclUint64: return ReduceAs<uint64_t, uint64_t>(result, inputs, count, op);
    case ncclFloat16: return ReduceAs<__half, float>(result, inputs, count, op);
    case ncclBfloat16: return ReduceAs<__nv_bfloat16, float>(result, inputs, count, op);
    case ncclFloat32: return ReduceAs<float, float>(result, inputs, count, op);
    case ncclFloat64: return ReduceAs<double, double>(result, inputs, count, op);
    default: return;
  }
}

std::string Clique::Join(const CommunicatorPtr& comer) {
  const auto at = static_cast<size_t>(comer->rank);
  if (came_[at]) return "rank " + std::to_string(comer->rank) + " came twice";
  for (const auto& other : ranks_)
    if (const CommunicatorPtr there = other.lock(); there && there->device == comer->device)
      return "ranks " + std::to_string(there->rank) + " and " + std::to_string(comer->rank) + " are on one device";
  came_[at] = true;
  ranks_[at] = comer;
  state().changed.notify_all();
  return "";
}

bool Clique::Complete() const {
  return std::all_of(came_.begin(), came_.end(), [](bool came) { return came; });
}

bool Clique::Quiescent() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const std::weak_ptr<Communicator>& r) {
    const CommunicatorPtr rank = r.lock();
    return !rank || rank->aborted || (rank->finalized && rank->launched == rank->ended);
  });
}

// Of every rank, where nobody has found another.
void Clique::Fail(ncclResult_t error, const std::string& violation) {
  if (!violation.empty()) Violation("NCCL", violation);
  for (const auto& r : ranks_)
    if (const CommunicatorPtr rank = r.lock(); rank && (rank->result == ncclSuccess || rank->result == ncclInProgress))
      rank->result = error;
  state().changed.notify_all();
}

void Clique::Run(Communicator& rank, const std::vector<Request>& group) {
  State& g = state();
  std::unique_lock lock(g.mu);
  Visit visit{&rank, {}, 0};
  // Its kernel takes the place that another communicator's on the device would need: ranks that start those of two communicators in
  // two orders wait for each other for ever.
  Communicator*& resident = g.resident[rank.device];
  g.changed.wait(lock, [&] { return !resident || rank.aborted; });
  if (!rank.aborted) resident = &rank;
  if (g.fault_in > 0 && g.fault_rank == rank.rank && --g.fault_in == 0) {
    Fail(g.fault, "");
    visit.open = 1;
  } else if (!rank.aborted) {
    for (const Request& r : group)
      if (!ToPeer(r)) visit.collectives.push_back(r);
    if (!visit.collectives.empty()) Meet(visit);
    for (const Request& r : group)
      if (ToPeer(r)) Exchange(visit, r);
  }
  g.changed.wait(lock, [&] { return visit.open == 0 || rank.aborted; });
  Leave(visit);
  if (resident == &rank) resident = nullptr;
  ++rank.ended;
  g.changed.notify_all();
}

void Clique::Meet(Visit& visit) {
  ++visit.open;
  const uint64_t number = meetings_of_[static_cast<size_t>(visit.rank->rank)]++;
  std::vector<Visit*>& there = meetings_[number];
  there.push_back(&visit);
  for (const Visit* other : there) {
    const bool alike = std::equal(visit.collectives.begin(), visit.collectives.end(), other->collectives.begin(),
                                  other->collectives.end(), Alike);
    if (!alike)
      return Fail(ncclInternalError, "collective " + std::to_string(number) + ": rank " +
                                         std::to_string(other->rank->rank) + " calls " + Describe(other->collectives) +
                                         ", rank " + std::to_string(visit.rank->rank) + " calls " +
                                         Describe(visit.collectives));
  }
  if (there.size() < ranks_.size()) return;
  std::sort(there.begin(), there.end(), [](const Visit* a, const Visit* b) { return a->rank->rank < b->rank->rank; });
  for (size_t i = 0; i < visit.collectives.size(); ++i) {
    const Request& shape = visit.collectives[i];
    const size_t bytes = shape.count * SizeOf(shape.type);
    for (const Visit* v : there)
      for (const Visit* peer : there)
        for (const void* buffer : {v->collectives[i].send, const_cast<const void*>(v->collectives[i].recv)})
          if (buffer && !cudaModelMayAccess(buffer, peer->rank->device))
            Violation("NCCL", "rank " + std::to_string(peer->rank->rank) + " may not access a buffer of rank " +
                                  std::to_string(v->rank->rank) + ", whose pool gives its device no access");
    std::vector<std::vector<std::byte>> sent;  // results may lie where inputs do
    for (const Visit* v : there) {
      const Request& r = v->collectives[i];
      const auto* from = static_cast<const std::byte*>(r.send);
      sent.emplace_back(from, from + BytesSent(r, v->rank->rank, size()));
    }
    for (size_t to = 0; to < there.size(); ++to) {
      auto* const recv = static_cast<std::byte*>(there[to]->collectives[i].recv);
      if (Reduces(shape)) {
        const size_t part = shape.kind == Kind::kReduceScatter ? to * bytes : 0;
        std::vector<const void*> inputs;
        for (const auto& s : sent) inputs.push_back(s.data() + part);
        Reduce(recv, inputs, shape.count, shape.type, shape.op);
      } else if (shape.kind == Kind::kBroadcast) {
        std::memcpy(recv, sent[static_cast<size_t>(shape.peer)].data(), bytes);
      } else {
        for (size_t from = 0; from < sent.size(); ++from) std::memcpy(recv + from * bytes, sent[from].data(), bytes);
      }
    }
  }
  for (Visit* v : there) --v->open;
  meetings_.erase(number);
  state().changed.notify_all();
}

void Clique::Exchange(Visit& visit, const Request& request) {
  ++visit.open;
  const bool sends = request.kind == Kind::kSend;
  const int me = visit.rank->rank;
  const std::pair<int, int> way = sends ? std::pair(me, request.peer) : std::pair(request.peer, me);
  std::deque<Half>& others = (sends ? recvs_ : sends_)[way];
  if (others.empty()) return (sends ? sends_ : recvs_)[way].push_back({&visit, request});
  const Half other = others.front();
  others.pop_front();
  const Request& from = sends ? request : other.request;
  const Request& to = sends ? other.request : request;
  if (from.count != to.count || from.type != to.type)
    return Fail(ncclInternalError, "rank " + std::to_string(way.first) + " calls " + nccl_model::Describe(from) +
                                       ", rank " + std::to_string(way.second) + " calls " + nccl_model::Describe(to));
  std::memcpy(to.recv, from.send, from.count * SizeOf(from.type));
  --visit.open;
  --other.visit->open;
  state().changed.notify_all();
}

// It was aborted: nobody meets it any more.
void Clique::Leave(const Visit& visit) {
  for (auto& [number, there] : meetings_) std::erase(there, &visit);
  for (auto* halves : {&sends_, &recvs_})
    for (auto& [way, queue] : *halves) std::erase_if(queue, [&](const Half& h) { return h.visit == &visit; });
}

}  // namespace nccl_model
