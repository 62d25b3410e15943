// The model of NCCL: ranks of one process that meet in memory, on streams of the model of CUDA, as strictly as the user guide
// and nccl.h have it. It has what this project calls.
//
//   nccl.cc         the functions: what may be called when
//   nccl_clique.cc  communicators of one id: how their groups meet, and what they compute
//
// What is undefined or would hang is a violation (control.h) and an error besides: ranks that call different things, a call to a
// communicator that is busy, finalized or gone, buffers that are not the device's or overlap.
//
// A non-blocking communicator is busy until it has been asked twice (ncclCommGetAsyncError): only then is the work on the
// stream, so that whoever does not wait puts its work in front.
//
// Threads:   one lock, never held while something waits for a peer. What runs on a stream is a host function there.
// Ownership: handles are numbers, never used twice. Errors: as NCCL's.
#pragma once

#include <nccl.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace nccl_model {

void Violation(const char* function, const std::string& what);

enum class Kind : uint8_t { kAllReduce, kBroadcast, kReduceScatter, kAllGather, kSend, kRecv };

struct Request {
  Kind kind;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = 0;  // or root
  cudaStream_t stream = nullptr;
};
size_t SizeOf(ncclDataType_t type);  // 0: there is none
std::string Describe(const Request& request);
// Bytes that the request reads and writes at a rank of a clique of `size`.
size_t BytesSent(const Request& request, int rank, int size);
size_t BytesReceived(const Request& request, int size);

class Clique;

struct Communicator {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  bool blocking = true;
  ncclResult_t result = ncclSuccess;  // what ncclCommGetAsyncError says
  enum class Busy : uint8_t {
    kNo,
    kJoins,      // -> kNo, once all ranks have come
    kLaunches,   // -> kNo, with the group on the stream
    kFinalizes,  // -> kNo, once all ranks do, and nothing runs
  } busy = Busy::kNo;
  bool asked = false;            // while busy
  std::vector<Request> group;    // to be launched
  long launched = 0, ended = 0;  // groups
  bool finalized = false, aborted = false;
};
using CommunicatorPtr = std::shared_ptr<Communicator>;

struct State {
  std::mutex mu;
  std::condition_variable changed;
  std::map<uint64_t, CommunicatorPtr> communicators;  // by their handles
  uint64_t made = 0;
  std::map<std::string, std::weak_ptr<Clique>> cliques;  // by the bytes of their ids
  long fault_in = 0;                                     // of a rank's groups
  int fault_rank = 0;
  ncclResult_t fault = ncclSuccess;
  bool abort_waits = false;
  std::map<int, Communicator*> resident;  // by device: whose group runs there
};
State& state();

// The communicators of one id. All under the state's lock.
class Clique {
 public:
  explicit Clique(int size) : ranks_(static_cast<size_t>(size)) {}
  int size() const { return static_cast<int>(ranks_.size()); }
  // Why the rank cannot come; empty: it has.
  std::string Join(const CommunicatorPtr& rank);
  bool Complete() const;   // all have come
  bool Quiescent() const;  // all are finalized or gone, and nothing runs
  // On the thread of the stream: returns when the group has ended, or its rank was aborted.
  void Run(Communicator& rank, const std::vector<Request>& group);

 private:
  struct Visit {  // of a group in Run
    Communicator* rank;
    std::vector<Request> collectives;
    size_t open = 0;  // parts that are not done
  };
  struct Half {
    Visit* visit;
    Request request;
  };
  void Meet(Visit& visit);
  void Exchange(Visit& visit, const Request& request);
  void Fail(ncclResult_t error, const std::string& violation);
  void Leave(const Visit& visit);

  std::vector<std::weak_ptr<Communicator>> ranks_;
  std::vector<bool> came_ = std::vector<bool>(ranks_.size());
  std::vector<uint64_t> meetings_of_ = std::vector<uint64_t>(ranks_.size());
  std::map<uint64_t, std::vector<Visit*>> meetings_;               // by number: those that are there
  std::map<std::pair<int, int>, std::deque<Half>> sends_, recvs_;  // by (from, to)
};

// result[i] = the reduction of all inputs' [i], in their order.
void Reduce(void* result, const std::vector<const void*>& inputs, size_t count, ncclDataType_t type, ncclRedOp_t op);

}  // namespace nccl_model
