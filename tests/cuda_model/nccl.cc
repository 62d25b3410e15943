// The functions of NCCL: what may be called when, and what becomes of it.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "control.h"
#include "nccl_control.h"
#include "nccl_model.h"

namespace nccl_model {

State& state() {
  static State& state = *new State;
  return state;
}

void Violation(const char* function, const std::string& what) { cudaModelViolation(function, what.c_str()); }

namespace {

using Busy = Communicator::Busy;

// Planted by ncclModelFail, and what was counted, under the state's lock.
struct Fault {
  std::string function;
  long in = 0;
  ncclResult_t error = ncclSuccess;
};
std::map<std::string, long>& calls() {
  static std::map<std::string, long>& calls = *new std::map<std::string, long>;
  return calls;
}
Fault& fault() {
  static Fault& fault = *new Fault;
  return fault;
}

// Of the process, as NCCL's; texts stay.
std::atomic<const char*> g_last_error{""};

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<std::pair<CommunicatorPtr, Request>> requests;
};
thread_local Group t_group;

ncclResult_t Refuse(ncclResult_t result, const std::string& why) {
  static std::mutex mu;
  static std::set<std::string>& texts = *new std::set<std::string>;
  const std::lock_guard lock(mu);
  g_last_error = texts.insert(why).first->c_str();
  return result;
}
ncclResult_t Misuse(const char* function, ncclResult_t result, const std::string& why) {
  Violation(function, why);
  return Refuse(result, why);
}

constexpr uint64_t kHandles = uint64_t{0x9CC1} << 48;  // no address looks like that

// One call: holds the lock, and fails where a test has said so.
struct Call {
  explicit Call(const char* name) : function(name), g(state()), lock(g.mu) {
    ++calls()[name];
    Fault& f = fault();
    if (f.in > 0 && f.function == function && --f.in == 0)
      planted = Refuse(f.error, std::string(function) + ": made to fail");
  }
  CommunicatorPtr Find(ncclComm_t handle) {
    const auto number = reinterpret_cast<uint64_t>(handle);
    const auto at = g.communicators.find(number);
    if (at != g.communicators.end()) return at->second;
    (void)Misuse(ncclInvalidArgument, !handle                       ? "the communicator is null"
                                      : number - kHandles <= g.made ? "the communicator was destroyed, or aborted"
                                                                    : "the handle is none of a communicator");
    return nullptr;
  }
  ncclResult_t Misuse(ncclResult_t result, const std::string& why) { return nccl_model::Misuse(function, result, why); }
  // "query the communicator state until it becomes ncclSuccess before calling another NCCL function".
  ncclResult_t Ready(const Communicator& c) {
    if (c.finalized) return Misuse(ncclInvalidUsage, "the communicator was finalized");
    if (c.result == ncclInProgress)
      return Misuse(ncclInvalidArgument, "the communicator's call before is still in progress");
    return c.result == ncclSuccess ? ncclSuccess : Refuse(c.result, "the communicator has failed");
  }

  const char* const function;
  State& g;
  std::unique_lock<std::mutex> lock;
  ncclResult_t planted = ncclSuccess;
};

// Puts what was asked for on the stream, as one launch.
ncclResult_t Launch(const CommunicatorPtr& c, std::vector<Request> group) {
  struct Job {
    CommunicatorPtr rank;
    std::vector<Request> group;
  };
  const auto run = [](void* given) {
    const std::unique_ptr<Job> job(static_cast<Job*>(given));
    job->rank->clique->Run(*job->rank, job->group);
  };
  const cudaStream_t stream = group[0].stream;
  auto job = std::make_unique<Job>(c, std::move(group));
  int before = 0;
  (void)cudaGetDevice(&before);
  (void)cudaSetDevice(c->device);
  const cudaError_t error = cudaLaunchHostFunc(stream, run, job.get());
  (void)cudaSetDevice(before);
  if (error != cudaSuccess) return Refuse(ncclUnhandledCudaError, std::string("a launch: ") + cudaGetErrorName(error));
  (void)job.release();
  ++c->launched;
  return ncclSuccess;
}

// A communicator that is busy has been asked how it does: it goes on if it was asked before.
void Advance(const CommunicatorPtr& c) {
  if (c->busy == Busy::kNo || c->result != ncclInProgress || !std::exchange(c->asked, true)) return;
  if (c->busy == Busy::kJoins && !c->clique->Complete()) return;
  if (c->busy == Busy::kFinalizes && !c->clique->Quiescent()) return;
  c->result = c->busy == Busy::kLaunches ? Launch(c, std::move(c->group)) : ncclSuccess;
  c->group.clear();
  c->busy = Busy::kNo;
}

ncclResult_t Begin(Communicator& c, Busy busy) {
  c.busy = busy;
  c.asked = false;
  return c.result = ncclInProgress;
}

ncclResult_t Init(Call& call, ncclComm_t* handle, int size, const ncclUniqueId& id, int rank, bool blocking,
                  int device) {
  *handle = nullptr;
  if (t_group.depth != 0) return call.Misuse(ncclInvalidUsage, "in a group: the model has none of that");
  if (size < 1 || rank < 0 || rank >= size) return Refuse(ncclInvalidArgument, "no such rank");
  std::weak_ptr<Clique>& place = call.g.cliques[std::string(id.internal, sizeof id.internal)];
  const auto clique = place.lock() ? place.lock() : std::make_shared<Clique>(size);
  place = clique;
  if (clique->size() != size) return call.Misuse(ncclInvalidUsage, "ranks do not agree on how many they are");
  auto made = std::make_shared<Communicator>();
  made->clique = clique;
  made->rank = rank;
  made->device = device;
  made->blocking = blocking;
  // Of both NCCL says only that they may hang; the second it finds out ("Duplicate GPU detected").
  if (const std::string why = clique->Join(made); !why.empty()) return call.Misuse(ncclInvalidUsage, why);
  const uint64_t number = kHandles + ++call.g.made;
  call.g.communicators.emplace(number, made);
  *handle = reinterpret_cast<ncclComm_t>(number);
  return blocking ? ncclSuccess : Begin(*made, Busy::kJoins);
}

bool OnDevice(const void* memory, size_t bytes, int device) {
  for (const char* at : {static_cast<const char*>(memory), static_cast<const char*>(memory) + bytes - 1}) {
    cudaPointerAttributes of{};
    if (cudaPointerGetAttributes(&of, at) != cudaSuccess || of.type != cudaMemoryTypeDevice || of.device != device)
      return false;
  }
  return true;
}

// In place is allowed as nccl.h has it; any other overlap is not.
std::string WrongBuffers(const Request& r, int rank, int size, int device) {
  const size_t sent = BytesSent(r, rank, size), received = BytesReceived(r, size);
  const auto* const send = static_cast<const char*>(r.send);
  const auto* const recv = static_cast<const char*>(r.recv);
  if (sent != 0 && !OnDevice(send, sent, device)) return "the send buffer is not all in memory of the rank's device";
  if (received != 0 && !OnDevice(recv, received, device))
    return "the receive buffer is not all in memory of the rank's device";
  if (sent == 0 || received == 0 || send + sent <= recv || recv + received <= send) return "";
  const size_t part = static_cast<size_t>(rank) * r.count * SizeOf(r.type);
  const bool in_place = r.kind == Kind::kAllGather       ? send == recv + part
                        : r.kind == Kind::kReduceScatter ? recv == send + part
                                                         : send == recv;
  return in_place ? "" : "the buffers overlap, and not as in place";
}

ncclResult_t Check(Call& call, const Communicator& c, const Request& r) {
  if (const ncclResult_t result = call.Ready(c); result != ncclSuccess) return result;
  if (SizeOf(r.type) == 0 || r.op < 0 || r.op >= ncclNumOps)
    return call.Misuse(ncclInvalidArgument, "no such type, or reduction");
  if (r.peer < 0 || r.peer >= c.clique->size()) return call.Misuse(ncclInvalidArgument, "no such rank");
  int device = -1;
  cudaStreamCaptureStatus captures = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamGetDevice(r.stream, &device);
  if (error == cudaSuccess) error = cudaStreamIsCapturing(r.stream, &captures);
  if (error != cudaSuccess)
    return Refuse(ncclUnhandledCudaError, std::string("the stream: ") + cudaGetErrorName(error));
  if (device != c.device) return call.Misuse(ncclInvalidArgument, "the stream is of another device");
  if (captures != cudaStreamCaptureStatusNone)
    return call.Misuse(ncclInvalidUsage, "the stream captures: the model has none of that");
  if (const std::string wrong = WrongBuffers(r, c.rank, c.clique->size(), c.device); !wrong.empty())
    return call.Misuse(ncclInvalidArgument, wrong);
  return ncclSuccess;
}

ncclResult_t EndGroup(Call& call) {
  Group group = std::move(t_group);
  t_group = {};
  if (group.error != ncclSuccess) return group.error;
  ncclResult_t result = ncclSuccess;
  while (!group.requests.empty() && (result == ncclSuccess || result == ncclInProgress)) {
    const CommunicatorPtr c = group.requests[0].first;
    const bool blocking = group.requests[0].first->blocking;
    std::vector<Request> of_it;
    for (const auto& [rank, request] : group.requests) {
      if (rank->blocking != blocking) return call.Misuse(ncclInvalidArgument, "a group of blocking and other ranks");
      if (rank == c) of_it.push_back(request);
    }
    std::erase_if(group.requests, [&](const auto& r) { return r.first == c; });
    if (std::any_of(of_it.begin(), of_it.end(), [&](const Request& r) { return r.stream != of_it[0].stream; }))
      return call.Misuse(ncclInvalidUsage, "one rank on several streams in a group: the model has none of that");
    if (blocking || c->clique->size() == 1) {  // alone it waits for nobody
      result = Launch(c, std::move(of_it));
    } else {
      c->group = std::move(of_it);
      result = Begin(*c, Busy::kLaunches);
    }
  }
  return result;
}

ncclResult_t Add(const char* function, ncclComm_t handle, const Request& request) {
  Call call(function);
  const auto checked = [&]() -> ncclResult_t {
    if (call.planted != ncclSuccess) return call.planted;
    const CommunicatorPtr c = call.Find(handle);
    if (!c) return ncclInvalidArgument;
    if (const ncclResult_t bad = Check(call, *c, request); bad != ncclSuccess) return bad;
    t_group.requests.emplace_back(c, request);
    return ncclSuccess;
  };
  const ncclResult_t result = checked();
  if (t_group.depth == 0) return result == ncclSuccess ? EndGroup(call) : result;
  if (t_group.error == ncclSuccess) t_group.error = result;
  return result;
}

__attribute__((destructor)) void AtExit() {
  const int left = ncclModelLiveCommunicators();
  if (left != 0) Violation("exit", "the program left " + std::to_string(left) + " communicators");
}

}  // namespace
}  // namespace nccl_model

using namespace nccl_model;

extern "C" {

void ncclModelFail(const char* function, long nth, ncclResult_t error) {
  const std::lock_guard lock(state().mu);
  fault() = {function, nth, error};
}

void ncclModelFailAsync(int rank, long nth, ncclResult_t error) {
  const std::lock_guard lock(state().mu);
  state().fault_rank = rank;
  state().fault_in = nth;
  state().fault = error;
}

void ncclModelAbortWaits(bool waits) {
  const std::lock_guard lock(state().mu);
  state().abort_waits = waits;
}

long ncclModelCalls(const char* function) {
  const std::lock_guard lock(state().mu);
  return calls()[function];
}

int ncclModelLiveCommunicators() {
  const std::lock_guard lock(state().mu);
  return static_cast<int>(state().communicators.size());
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "unhandled system error",
                                           "internal error",
                                           "invalid argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  return static_cast<size_t>(result) < std::size(kTexts) ? kTexts[result] : "unknown result code";
}
const char* ncclGetLastError(ncclComm_t) { return g_last_error; }

ncclResult_t ncclGetVersion(int* version) {
  Call call(__func__);
  *version = NCCL_VERSION_CODE;
  return call.planted;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  Call call(__func__);
  if (call.planted != ncclSuccess) return call.planted;
  static long made = 0;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "model of NCCL, clique %ld", ++made);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  Call call(__func__);
  if (call.planted != ncclSuccess) return call.planted;
  if (config && (config->magic != NCCL_API_MAGIC || config->size != sizeof *config))
    return call.Misuse(ncclInvalidArgument, "the config was not made by NCCL_CONFIG_INITIALIZER");
  const bool blocking = !config || config->blocking != 0;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return Refuse(ncclUnhandledCudaError, "there is no device");
  const ncclResult_t result = Init(call, comm, size, id, rank, blocking, device);
  if (result != ncclSuccess) return result;
  const CommunicatorPtr made = call.Find(*comm);
  call.g.changed.wait(call.lock, [&] { return made->clique->Complete(); });
  return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int size, const int* devices) {
  ncclUniqueId id;
  (void)ncclGetUniqueId(&id);
  Call call(__func__);
  ncclResult_t result = call.planted;
  for (int i = 0; i < size && result == ncclSuccess; ++i)
    result = Init(call, comms + i, size, id, i, true, devices ? devices[i] : i);
  return result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  Call call(__func__);
  if (call.planted != ncclSuccess) return call.planted;
  const CommunicatorPtr c = call.Find(comm);
  if (!c) return ncclInvalidArgument;
  Advance(c);
  *result = c->result;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  Call call(__func__);
  if (call.planted != ncclSuccess) return call.planted;
  const CommunicatorPtr c = call.Find(comm);
  if (!c) return ncclInvalidArgument;
  if (const ncclResult_t result = call.Ready(*c); result != ncclSuccess) return result;
  c->finalized = true;
  call.g.changed.notify_all();
  if (!c->blocking) return Begin(*c, Busy::kFinalizes);
  call.g.changed.wait(call.lock, [&] { return c->clique->Quiescent(); });
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Call call(__func__);
  if (call.planted != ncclSuccess) return call.planted;
  const CommunicatorPtr c = call.Find(comm);
  if (!c) return ncclInvalidArgument;
  if (c->result == ncclInProgress)
    return call.Misuse(ncclInvalidArgument, "the communicator's call before is still in progress");
  c->finalized = true;
  call.g.changed.notify_all();
  call.g.changed.wait(call.lock, [&] { return c->clique->Quiescent(); });
  call.g.communicators.erase(reinterpret_cast<uint64_t>(comm));
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  Call call(__func__);
  if (call.planted != ncclSuccess) return call.planted;
  const CommunicatorPtr c = call.Find(comm);
  if (!c) return ncclInvalidArgument;
  c->aborted = true;
  call.g.changed.notify_all();
  if (call.g.abort_waits) {
    call.lock.unlock();
    cudaModelWaitIdle(c->device);
    call.lock.lock();
  }
  call.g.communicators.erase(reinterpret_cast<uint64_t>(comm));
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  const Call call(__func__);
  if (call.planted != ncclSuccess) return call.planted;
  ++t_group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  Call call(__func__);
  if (t_group.depth == 0) return call.Misuse(ncclInvalidUsage, "not in a group");
  if (--t_group.depth > 0) return t_group.error;
  if (call.planted != ncclSuccess) t_group.error = call.planted;
  return EndGroup(call);
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return Add(__func__, comm, {Kind::kAllReduce, send, recv, count, type, op, 0, stream});
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return Add(__func__, comm, {Kind::kBroadcast, send, recv, count, type, ncclSum, root, stream});
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return Add(__func__, comm, {Kind::kReduceScatter, send, recv, count, type, op, 0, stream});
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return Add(__func__, comm, {Kind::kAllGather, send, recv, count, type, ncclSum, 0, stream});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Add(__func__, comm, {Kind::kSend, send, nullptr, count, type, ncclSum, peer, stream});
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return Add(__func__, comm, {Kind::kRecv, nullptr, recv, count, type, ncclSum, peer, stream});
}

}  // extern "C"
