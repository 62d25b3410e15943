// Communicator: collectives between the ranks of a program, as ops. One rank on one device of one engine.
//
//   engine::Communicator comm(eng, {.name = "data", .rank = rank, .size = ranks, .id = id});
//   comm.Push(eng, {.name = "reduce", .updates = gradient}, {engine::Collective::AllReduce(g, g, n)});
//   eng.Wait(gradient);
//
// A collective is an op like any other: it names what it reads and writes, and may be pushed through a Bulk or a Capture.
// Beside those Vars it updates one of the communicator's, so that its collectives run in push order on every rank, whatever
// policy, priority and bulk size. They have a lane and an issuing thread of their own.
//
// Several calls in one push are one group, as between ncclGroupStart and ncclGroupEnd: one launch, behind the inputs of all
// and in front of what needs any of their results. Groups are the program's and not the bulk's, because all ranks must
// group alike, and a bulk may end early on one of them. Calls of one group must not need each other's results. A rank
// that sends to and receives from others at the same time does so in one group.
//
// The kind of the device chooses the library: NCCL on "cuda"; loopback (loopback.h), within one process, on "software".
//
// Threads:   every method on any thread. Push order counts, so one thread, or ops of which each follows from the one before.
// Ownership: buffers are the caller's, or what the push was told that they belong to. The last collective may outlive the
//            handle: the communicator leaves behind its pending ops, and waits for nobody.
// Errors:    UsageError for what cannot be called. CommunicatorError, in the ops concerned, for what goes wrong later: an
//            error of the library, of another rank, a timeout, Abort, a collective that was skipped because its input had
//            failed (the other ranks would wait for it). The communicator is aborted then: what was issued and had not
//            ended fails, and what was issued behind it and needs it; the device goes on. Later collectives fail with
//            the cause. Make a new communicator to go on.
//            Device graphs never hold collectives (a GraphKey is refused): ranks would have to capture alike.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace engine {

namespace detail {
struct CommunicatorState;
}

enum class DataType : uint8_t {
  kInt8,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
};
size_t SizeOf(DataType type) noexcept;             // in bytes
const char* DataTypeName(DataType type) noexcept;  // "float32", ...

enum class Reduction : uint8_t { kSum, kProduct, kMax, kMin, kAverage };

// One call, as a value. Pointers are of the device, counts in elements; names and arguments are NCCL's.
struct Collective {
  enum class Kind : uint8_t { kAllReduce, kBroadcast, kReduceScatter, kAllGather, kSend, kRecv };
  Kind kind;
  DataType type = DataType::kFloat32;
  Reduction reduction = Reduction::kSum;
  int peer = 0;  // the root of a broadcast; the other side of a send or recv
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;

  // recv = reduction over all ranks of send; both of `count`, and they may be the same.
  static Collective AllReduce(const void* send, void* recv, size_t count, DataType type = DataType::kFloat32,
                              Reduction reduction = Reduction::kSum) {
    return {Kind::kAllReduce, type, reduction, 0, send, recv, count};
  }
  // recv = send of `root`; only there is `send` looked at.
  static Collective Broadcast(const void* send, void* recv, size_t count, DataType type, int root) {
    return {Kind::kBroadcast, type, Reduction::kSum, root, send, recv, count};
  }
  // recv, of `count`, = this rank's part of the reduction of send, of `count` times the ranks.
  static Collective ReduceScatter(const void* send, void* recv, size_t count, DataType type = DataType::kFloat32,
                                  Reduction reduction = Reduction::kSum) {
    return {Kind::kReduceScatter, type, reduction, 0, send, recv, count};
  }
  // recv, of `count` times the ranks, = every rank's send, of `count`, by rank.
  static Collective AllGather(const void* send, void* recv, size_t count, DataType type = DataType::kFloat32) {
    return {Kind::kAllGather, type, Reduction::kSum, 0, send, recv, count};
  }
  static Collective Send(const void* send, size_t count, DataType type, int peer) {
    return {Kind::kSend, type, Reduction::kSum, peer, send, nullptr, count};
  }
  static Collective Recv(void* recv, size_t count, DataType type, int peer) {
    return {Kind::kRecv, type, Reduction::kSum, peer, nullptr, recv, count};
  }
};
const char* CollectiveName(Collective::Kind kind) noexcept;  // "all_reduce", ...

// What the ranks of a communicator have in common: one of them makes it, and ships its bytes to the others.
struct CommunicatorId {
  std::array<unsigned char, 128> bytes{};
  friend bool operator==(const CommunicatorId&, const CommunicatorId&) noexcept = default;
};
// For communicators on devices of this kind: "cuda", "software". Throws CommunicatorError where the library is missing, and
// says which. Needs no device: a process that only starts the ranks may call it.
CommunicatorId NewCommunicatorId(std::string_view kind);
inline CommunicatorId NewCommunicatorId(const Device& device) { return NewCommunicatorId(device.info().kind); }

struct CommunicatorOptions {
  std::string name = "world";  // in messages
  int device = 0;              // of the engine
  int rank = 0;
  int size = 1;
  CommunicatorId id = {};
  // A collective that has not ended so long after it came first fails the communicator. 0: peers are waited for without an
  // end; the watchdog (stall_timeout) names the op, and at shutdown the communicator is aborted after drain_timeout.
  std::chrono::milliseconds timeout{0};
};

struct CommunicatorStats {
  uint64_t collectives = 0;  // calls that were issued
  uint64_t groups = 0;       // launches that they took: one a push
};

class Communicator {
 public:
  // Returns at once: ranks find each other in the first op of the communicator's lane, whose failure is that of all later.
  Communicator(Engine& engine, CommunicatorOptions options, Site site = std::source_location::current());
  ~Communicator();
  Communicator(Communicator&&) noexcept = default;
  Communicator& operator=(Communicator&& other) noexcept;

  // One op. `desc` names the Vars of the buffers; its place is the communicator's, and must be left alone. `owner`: what
  // the buffers belong to, given up once the op has retired; null: the caller sees to it.
  void Push(Submitter& to, const OpDesc& desc, std::span<const Collective> calls,
            std::shared_ptr<const void> owner = {}, Site site = std::source_location::current());
  void Push(Submitter& to, const OpDesc& desc, std::initializer_list<Collective> calls,
            std::shared_ptr<const void> owner = {}, Site site = std::source_location::current()) {
    Push(to, desc, std::span<const Collective>(calls.begin(), calls.size()), std::move(owner), site);
  }

  // Fails what has been issued and has not ended, and all that comes; other ranks are told as far as the library can.
  void Abort(std::string_view why);

  // UsageError, as from the calls above, if it was moved from.
  int rank() const;
  int size() const;
  const std::string& name() const;
  Placement place() const;
  const Var& var() const;  // that every collective updates
  CommunicatorStats stats() const;

 private:
  void End() noexcept;
  detail::CommunicatorState& State(const char* call) const;  // refuses one that was moved from
  std::shared_ptr<detail::CommunicatorState> state_;
};

// All ranks of a new communicator in this process: rank i on device devices[i] of the engine, all devices of one kind. Rank,
// size, device and id of `options` are not looked at. Throws what NewCommunicatorId and Communicator throw.
std::vector<Communicator> NewCommunicators(Engine& engine, std::span<const int> devices,
                                           const CommunicatorOptions& options = {},
                                           Site site = std::source_location::current());

}  // namespace engine
