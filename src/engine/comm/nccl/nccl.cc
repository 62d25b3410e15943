// The NCCL backend. The communicator is non-blocking: a call that has to wait for peers returns ncclInProgress, and
// this rank's own thread asks until the call is done, so that an abort gets through at any time.
//
// Locks: mu_, for the length of each call of NCCL; none of these calls waits for a peer.
#include <nccl.h>

#include <cstring>
#include <thread>

#include "base/sync.h"
#include "comm/backend.h"
#include "engine/device/cuda_stream.h"

// Needed for non-blocking communicators, and for the text of the last error.
static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0), "NCCL 2.18 or newer is needed");

namespace engine::detail {
namespace {

static_assert(sizeof(CommunicatorId) == sizeof(ncclUniqueId));

// Between two looks at a call in progress. A communicator's first call takes milliseconds; later ones are usually done
// at once.
constexpr std::chrono::microseconds kProgressNap{20};

ncclDataType_t TypeOf(DataType type) {
  switch (type) {
    case DataType::kInt8: return ncclInt8;
    case DataType::kUint8: return ncclUint8;
    case DataType::kInt32: return ncclInt32;
    case DataType::kUint32: return ncclUint32;
    case DataType::kInt64: return ncclInt64;
    case DataType::kUint64: return ncclUint64;
    case DataType::kFloat16: return ncclFloat16;
    case DataType::kFloat32: return ncclFloat32;
    case DataType::kFloat64: return ncclFloat64;
    case DataType::kBfloat16: return ncclBfloat16;
  }
  return ncclNumTypes;
}

ncclRedOp_t ReductionOf(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return ncclSum;
    case Reduction::kProduct: return ncclProd;
    case Reduction::kMax: return ncclMax;
    case Reduction::kMin: return ncclMin;
    case Reduction::kAverage: return ncclAvg;
  }
  return ncclNumOps;
}

ncclResult_t Call(const Collective& c, ncclComm_t comm, cudaStream_t stream) {
  const ncclDataType_t type = TypeOf(c.type);
  switch (c.kind) {
    case Collective::Kind::kAllReduce:
      return ncclAllReduce(c.send, c.recv, c.count, type, ReductionOf(c.reduction), comm, stream);
    case Collective::Kind::kBroadcast: return ncclBroadcast(c.send, c.recv, c.count, type, c.peer, comm, stream);
    case Collective::Kind::kReduceScatter:
      return ncclReduceScatter(c.send, c.recv, c.count, type, ReductionOf(c.reduction), comm, stream);
    case Collective::Kind::kAllGather: return ncclAllGather(c.send, c.recv, c.count, type, comm, stream);
    case Collective::Kind::kSend: return ncclSend(c.send, c.count, type, c.peer, comm, stream);
    case Collective::Kind::kRecv: return ncclRecv(c.recv, c.count, type, c.peer, comm, stream);
  }
  return ncclInvalidArgument;
}

class NcclBackend final : public CommBackend {
 public:
  explicit NcclBackend(const Membership& membership) : membership_(membership) {}
  ~NcclBackend() override { Abort("the communicator was dropped"); }

  void Join() override {
    const CommunicatorOptions& options = membership_.options;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclUniqueId id;
    std::memcpy(&id, options.id.bytes.data(), sizeof id);
    ncclResult_t result;
    {
      MutexLock lock(mu_);
      CheckAlive();
      result = ncclCommInitRankConfig(&comm_, options.size, id, options.rank, &config);
    }
    const auto limit = options.timeout.count() ? After(options.timeout) : kNever;
    Await("ncclCommInitRankConfig", result, limit);
  }

  void Issue(RunContext& ctx, std::span<const Collective> group) override {
    const cudaStream_t stream = CudaStream(ctx);
    ncclResult_t result = ncclSuccess;
    const char* failed = "ncclGroupEnd";
    {
      MutexLock lock(mu_);
      CheckAlive();
      if (group.size() == 1) {
        failed = CollectiveName(group[0].kind);
        result = Call(group[0], comm_, stream);
      } else if (!Good(result = ncclGroupStart())) {
        failed = "ncclGroupStart";
      } else {
        for (size_t i = 0; i < group.size() && Good(result); ++i)
          if (!Good(result = Call(group[i], comm_, stream))) failed = CollectiveName(group[i].kind);
        const ncclResult_t ended = ncclGroupEnd();  // also after a call that failed
        if (Good(result)) result = ended;
      }
    }
    const auto timeout = membership_.options.timeout;
    Await(failed, result, timeout.count() ? After(timeout) : kNever);
  }

  std::string AsyncError() noexcept override {
    MutexLock lock(mu_);
    if (!comm_) return {};
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    return Good(asked) && Good(state) ? std::string() : Text("asynchronous error", Good(asked) ? state : asked);
  }

  void Abort(const std::string& why) noexcept override {
    MutexLock lock(mu_);
    if (aborted_.empty()) aborted_ = why;
    if (comm_) (void)ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  // The ranks leave together; one that stays away does not keep this one for ever.
  bool Leave() noexcept override {
    MutexLock lock(mu_);
    if (!comm_) return true;
    ncclResult_t result = ncclSuccess;
    if (leave_by_ == Clock::time_point{}) {
      leave_by_ = Clock::now() + membership_.leave_within;
      result = ncclCommFinalize(comm_);
    } else if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result); asked != ncclSuccess) {
      result = asked;
    }
    if (result == ncclInProgress && Clock::now() < leave_by_) return false;
    (void)(result == ncclSuccess ? ncclCommDestroy(comm_) : ncclCommAbort(comm_));
    comm_ = nullptr;
    aborted_ = "the communicator was left";
    return true;
  }

 private:
  static bool Good(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }
  std::string Text(const char* what, ncclResult_t result) REQUIRES(mu_) {
    return std::string(what) + ": " + ncclGetErrorString(result) + " (" + ncclGetLastError(comm_) + ")";
  }
  void CheckAlive() REQUIRES(mu_) {
    if (!aborted_.empty()) throw CommunicatorError(aborted_);
  }
  // Waits until the call is no longer in progress. Only then may later work be put on the stream.
  void Await(const char* call, ncclResult_t result, Clock::time_point limit) EXCLUDES(mu_) {
    for (;;) {
      {
        MutexLock lock(mu_);
        CheckAlive();
        if (result == ncclInProgress) {
          const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
          if (asked != ncclSuccess) result = asked;
        }
        if (!Good(result)) throw CommunicatorError(Text(call, result));
      }
      if (result == ncclSuccess) return;
      if (Clock::now() > limit) throw CommunicatorError(std::string(call) + " has not ended within the timeout");
      std::this_thread::sleep_for(kProgressNap);
    }
  }

  const Membership membership_;
  Mutex mu_;
  ncclComm_t comm_ GUARDED_BY(mu_) = nullptr;
  std::string aborted_ GUARDED_BY(mu_);  // the reason; empty: not aborted
  Clock::time_point leave_by_ GUARDED_BY(mu_){};
};

}  // namespace

std::unique_ptr<CommBackend> MakeNcclBackend(const Membership& membership) {
  return std::make_unique<NcclBackend>(membership);
}

CommunicatorId NewNcclId() {
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
    throw CommunicatorError(std::string("ncclGetUniqueId: ") + ncclGetErrorString(result));
  CommunicatorId out;
  std::memcpy(out.bytes.data(), &id, sizeof id);
  return out;
}

}  // namespace engine::detail
