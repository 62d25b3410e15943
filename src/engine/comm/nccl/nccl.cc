// The NCCL backend. The communicator is non-blocking: a call that has to wait for peers returns ncclInProgress, and
// this rank's own thread asks until the call is done, so that an abort gets through at any time.
//
// Locks: mu_, for the length of questions. Join and Issue call NCCL without it, one at a time: a launch waits while the stream's
//        queue is full, which behind a peer that never comes is for ever, and an abort must get past it.
// Abort: ncclCommAbort may wait for the device, so each runs on a thread of its own. Leave waits for it for a while.
#include <nccl.h>
#include <sys/prctl.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/sync.h"
#include "comm/backend.h"
#include "engine/device/cuda_stream.h"

// Needed for non-blocking communicators, and for the text of the last error.
static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0), "NCCL 2.18 or newer is needed");

namespace engine::detail {
namespace {

static_assert(sizeof(CommunicatorId) == sizeof(ncclUniqueId));

// Between two looks at a call in progress: the first of a communicator takes milliseconds, later ones some microseconds, which are
// waited for awake.
constexpr std::chrono::microseconds kProgressNap{20}, kProgressSpin{50};
// How long an abort waits for a call that has begun. As a rule it ends at once, and NCCL is spared a call beside the abort.
constexpr std::chrono::milliseconds kCallPatience{500};

// Naps of this thread end in time while one lives. As a rule Linux lets them last 50 us longer.
class PunctualNaps {
 public:
  PunctualNaps() : before_(prctl(PR_GET_TIMERSLACK)) { prctl(PR_SET_TIMERSLACK, 1); }
  ~PunctualNaps() { prctl(PR_SET_TIMERSLACK, before_); }
  PunctualNaps(const PunctualNaps&) = delete;

 private:
  const int before_;
};

// What an abort shares with the rank, which may go before it.
struct AbortState {
  std::atomic<bool> in_call{false};  // seq_cst: set before the look at aborted_, under mu_
  std::atomic<bool> done{false};     // release: NCCL has let go of the communicator. Partner: acquire in Leave
};

void AbortNow(ncclComm_t comm, AbortState& state) {
  const auto until = Clock::now() + kCallPatience;
  while (state.in_call.load() && Clock::now() < until) std::this_thread::sleep_for(kProgressNap);
  (void)ncclCommAbort(comm);
  state.done.store(true, std::memory_order_release);
}

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
  ~NcclBackend() override {
    Abort("the communicator was dropped");
    while (!Leave()) std::this_thread::sleep_for(kProgressNap);
  }

  void Join() override {
    const CommunicatorOptions& options = membership_.options;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclUniqueId id;
    std::memcpy(&id, options.id.bytes.data(), sizeof id);
    ncclResult_t result;
    {
      const CallScope call(*this);
      ncclComm_t made = nullptr;
      result = ncclCommInitRankConfig(&made, options.size, id, options.rank, &config);
      MutexLock lock(mu_);
      comm_ = made;
      if (!aborted_.empty()) StartAbort();
    }
    const auto limit = options.timeout.count() ? After(options.timeout) : kNever;
    Await("ncclCommInitRankConfig", result, limit);
  }

  void Issue(RunContext& ctx, std::span<const Collective> group) override {
    const cudaStream_t stream = CudaStream(ctx);
    ncclResult_t result = ncclSuccess;
    const char* failed = "ncclGroupEnd";
    {
      const CallScope call(*this);
      if (group.size() == 1) {
        failed = CollectiveName(group[0].kind);
        result = Call(group[0], call.comm(), stream);
      } else if (!Good(result = ncclGroupStart())) {
        failed = "ncclGroupStart";
      } else {
        for (size_t i = 0; i < group.size() && Good(result); ++i)
          if (!Good(result = Call(group[i], call.comm(), stream))) failed = CollectiveName(group[i].kind);
        const ncclResult_t ended = ncclGroupEnd();  // also after a call that failed
        if (Good(result)) result = ended;
      }
    }
    const auto timeout = membership_.options.timeout;
    Await(failed, result, timeout.count() ? After(timeout) : kNever);
  }

  std::string AsyncError() override {
    MutexLock lock(mu_);
    if (!comm_ || abort_->in_call.load()) return {};  // asked again, when the call has ended
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    return Good(asked) && Good(state) ? std::string() : Text("asynchronous error", Good(asked) ? state : asked);
  }

  void Abort(const std::string& why) noexcept override {
    MutexLock lock(mu_);
    try {
      if (aborted_.empty()) aborted_ = why;
    } catch (const std::bad_alloc&) {
      aborted_ = "aborted";  // so short a text needs no memory
    }
    StartAbort();
  }

  // Ranks leave together; one that stays away does not keep this one for ever, nor does an abort that hangs.
  bool Leave() noexcept override {
    MutexLock lock(mu_);
    if (aborting_) return abort_->done.load(std::memory_order_acquire) || Clock::now() > leave_by_;
    if (!comm_) return true;
    ncclResult_t result = ncclSuccess;
    if (leave_by_ == Clock::time_point{}) {
      leave_by_ = Clock::now() + membership_.leave_within;
      result = ncclCommFinalize(comm_);
    } else if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result); asked != ncclSuccess) {
      result = asked;
    }
    if (result == ncclInProgress && Clock::now() < leave_by_) return false;
    aborted_ = "it was left";
    if (result != ncclSuccess) {
      StartAbort();
      return false;
    }
    (void)ncclCommDestroy(comm_);
    comm_ = nullptr;
    return true;
  }

 private:
  // A call of Join or Issue: the communicator lives while it begins, and an abort waits for it for a while.
  class CallScope {
   public:
    explicit CallScope(NcclBackend& of) : of_(of) {
      MutexLock lock(of.mu_);
      of.CheckAlive();
      of.abort_->in_call.store(true);
      comm_ = of.comm_;
    }
    ~CallScope() { of_.abort_->in_call.store(false); }
    CallScope(const CallScope&) = delete;
    ncclComm_t comm() const { return comm_; }

   private:
    NcclBackend& of_;
    ncclComm_t comm_;
  };

  // Once; nothing is asked of the communicator afterwards.
  void StartAbort() noexcept REQUIRES(mu_) {
    if (!comm_) return;
    aborting_ = true;
    leave_by_ = Clock::now() + membership_.leave_within;
    const auto abort = [comm = std::exchange(comm_, nullptr), state = abort_] { AbortNow(comm, *state); };
    try {
      std::thread(abort).detach();
    } catch (const std::exception&) {  // no thread to be had, or no memory
      abort();
    }
  }

  static bool Good(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }
  std::string Text(const char* what, ncclResult_t result) REQUIRES(mu_) {
    return std::string(what) + ": " + ncclGetErrorString(result) + " (" + ncclGetLastError(comm_) + ")";
  }
  void CheckAlive() REQUIRES(mu_) {
    if (!aborted_.empty()) throw CommunicatorError(aborted_);
  }
  // Waits until the call is no longer in progress. Only then may later work be put on the stream.
  void Await(const char* call, ncclResult_t result, Clock::time_point limit) EXCLUDES(mu_) {
    const auto awake_until = Clock::now() + kProgressSpin;
    std::optional<PunctualNaps> punctual;
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
      const auto now = Clock::now();
      if (now > limit)
        throw CommunicatorError(std::string(call) +
                                " has not ended within the timeout: see that every rank makes this call, or raise "
                                "CommunicatorOptions::timeout");
      if (now < awake_until) {
        std::this_thread::yield();
      } else {
        if (!punctual) punctual.emplace();
        std::this_thread::sleep_for(kProgressNap);
      }
    }
  }

  const Membership membership_;
  const std::shared_ptr<AbortState> abort_ = std::make_shared<AbortState>();
  Mutex mu_;
  bool aborting_ GUARDED_BY(mu_) = false;
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
