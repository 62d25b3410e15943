// Communicator: collectives between the ranks of a program, as ops. A Communicator is one rank, on one device of one
// engine.
//
//   engine::Communicator comm(eng, {.name = "data", .rank = rank, .size = ranks, .id = id});
//   comm.Push(eng, {.name = "reduce", .updates = gradient}, {engine::Collective::AllReduce(g, g, n)});
//   eng.Wait(gradient);
//
// A collective is an op like any other: it names its Vars, and may be pushed through a Bulk or a Capture.
// Besides those Vars it updates a Var of the communicator, so that the collectives of a communicator run in push order
// on every rank, whatever the policy, the priorities and the bulk size are. A communicator has a lane and an issuing
// thread of its own. The collectives of several communicators on one device also run there one after another in
// push order, so every rank must push those of all its communicators in one order.
//
// The calls of one push are one group, as between ncclGroupStart and ncclGroupEnd: one launch, behind the inputs of all
// the calls and in front of whatever needs any of their results. The program says what is a group, and not the bulk,
// because all ranks must group alike and a bulk may end earlier on one rank than on another. The calls of one group
// must not need each other's results. A rank that sends to and receives from others at the same time does so in one
// group.
//
// The kind of the device chooses the library: NCCL on "cuda"; loopback (loopback.h), within one process, on "software".
//
// Threads:   every method may be called on any thread. The order of the pushes counts, so push from one thread, or from
//            ops of which each follows from the one before.
// Ownership: buffers are the caller's, or belong to the `owner` that the push names. The last collective may outlive
//            the Communicator: the rank leaves its communicator behind its pending ops, and waits for nobody.
//            If there is no memory for that, it leaves with the engine.
// Errors:    UsageError for a call that cannot be made. CommunicatorError, in the ops concerned, for what goes wrong
//            later: an error of the library or of another rank, a timeout, Abort, or a collective that was skipped
//            because its input had failed (the other ranks would wait for it). Any of these aborts the communicator:
//            the collectives that were issued and had not ended fail, and so do the ops that were issued behind them
//            and need them; the device goes on. Later collectives fail with the same cause. Make a new communicator to
//            go on.
//            A GraphKey is refused: device graphs hold no collectives, because all ranks would have to capture alike.
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

// One call, as a value. Pointers are device pointers, counts are in elements; names and arguments are NCCL's.
struct Collective {
  enum class Kind : uint8_t { kAllReduce, kBroadcast, kReduceScatter, kAllGather, kSend, kRecv };
  Kind kind;
  DataType type = DataType::kFloat32;
  Reduction reduction = Reduction::kSum;
  int peer = 0;  // the root of a broadcast; the other side of a send or recv
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;

  // recv = the reduction of every rank's send. Both have `count` elements, and may be the same buffer.
  static Collective AllReduce(const void* send, void* recv, size_t count, DataType type = DataType::kFloat32,
                              Reduction reduction = Reduction::kSum) {
    return {Kind::kAllReduce, type, reduction, 0, send, recv, count};
  }
  // recv = send of rank `root`; the other ranks' send is not used.
  static Collective Broadcast(const void* send, void* recv, size_t count, DataType type, int root) {
    return {Kind::kBroadcast, type, Reduction::kSum, root, send, recv, count};
  }
  // recv, of `count` elements, = this rank's part of the reduction of send, which has `count` elements for each rank.
  static Collective ReduceScatter(const void* send, void* recv, size_t count, DataType type = DataType::kFloat32,
                                  Reduction reduction = Reduction::kSum) {
    return {Kind::kReduceScatter, type, reduction, 0, send, recv, count};
  }
  // recv, which has `count` elements for each rank, = every rank's send, of `count` elements, in the order of the
  // ranks.
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

// What the ranks of a communicator have in common: one rank makes it, and sends its bytes to the others.
struct CommunicatorId {
  std::array<unsigned char, 128> bytes{};
  friend bool operator==(const CommunicatorId&, const CommunicatorId&) noexcept = default;
};
// An id for communicators on devices of this kind: "cuda", "software". Throws CommunicatorError, which names the
// library, if that is missing. Needs no device: a process that only starts the ranks may call it.
CommunicatorId NewCommunicatorId(std::string_view kind);
inline CommunicatorId NewCommunicatorId(const Device& device) { return NewCommunicatorId(device.info().kind); }

struct CommunicatorOptions {
  std::string name = "world";  // for messages
  int device = 0;              // number of a device of the engine
  int rank = 0;
  int size = 1;
  CommunicatorId id = {};
  // A collective that has not ended this long after it came first on its lane fails the communicator. 0: no limit; the
  // watchdog (stall_timeout) names the op, and a shutdown aborts the communicator after drain_timeout.
  std::chrono::milliseconds timeout{0};
};

struct CommunicatorStats {
  uint64_t collectives = 0;  // calls that were issued
  uint64_t groups = 0;       // launches that these calls took: one for each push
};

class Communicator {
 public:
  // Returns at once. The ranks find each other in the first op on the communicator's lane; if that op fails, all later
  // ones fail with its error.
  Communicator(Engine& engine, CommunicatorOptions options, Site site = std::source_location::current());
  ~Communicator();
  Communicator(Communicator&&) noexcept = default;
  Communicator& operator=(Communicator&& other) noexcept;

  // Pushes the calls as one op. `desc` names the Vars of the buffers; leave its place alone, the op runs on the
  // communicator's lane. `owner`: what the buffers belong to; it is dropped when the op has retired. Null: the caller
  // keeps the buffers alive.
  void Push(Submitter& to, const OpDesc& desc, std::span<const Collective> calls,
            std::shared_ptr<const void> owner = {}, Site site = std::source_location::current());
  void Push(Submitter& to, const OpDesc& desc, std::initializer_list<Collective> calls,
            std::shared_ptr<const void> owner = {}, Site site = std::source_location::current()) {
    Push(to, desc, std::span<const Collective>(calls.begin(), calls.size()), std::move(owner), site);
  }

  // Fails the collectives that have been issued and have not ended, and all later ones. Tells the other ranks as far as
  // the library can.
  void Abort(std::string_view why);

  // These throw UsageError, as the calls above do, if the Communicator was moved from.
  int rank() const;
  int size() const;
  const std::string& name() const;
  Placement place() const;
  const Var& var() const;  // the Var that every collective updates
  CommunicatorStats stats() const;

 private:
  void End() noexcept;
  detail::CommunicatorState& State(const char* call) const;  // throws UsageError if it was moved from
  std::shared_ptr<detail::CommunicatorState> state_;
};

// Makes all ranks of a new communicator in this process: rank i on device devices[i] of the engine; the devices must be
// of one kind. Ignores rank, size, device and id of `options`. Throws what NewCommunicatorId and Communicator throw.
std::vector<Communicator> NewCommunicators(Engine& engine, std::span<const int> devices,
                                           const CommunicatorOptions& options = {},
                                           Site site = std::source_location::current());

}  // namespace engine
