// LoopbackWorld: where the ranks of one loopback communicator meet, in memory.
//
// Each push of a rank calls the world twice: when it is issued (Count, which says whether a fault was planted there),
// and when the rank's stream reaches it (Run). Run returns when everything in the push is done: its collectives, as one
// meeting of all ranks, and each send and recv with its other side. The rank that comes last to a meeting does the work
// for all.
//
// Threads:   any; one lock. Run blocks, as a kernel of a real library does, until the other ranks have come or its rank
//            is aborted.
// Ownership: shared by the ranks. It is found by its id until all ranks have gone.
// Errors:    the first failure is that of all ranks, and stays: nothing is matched after it. Ranks learn of it by
//            failure().
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/sync.h"
#include "engine/testing/loopback.h"

namespace engine::detail {

class LoopbackWorld {
 public:
  static std::shared_ptr<LoopbackWorld> Of(const CommunicatorId& id);  // made on first use
  static void Forget(const CommunicatorId& id);                        // once no rank can come any more

  void Plant(int rank, uint64_t nth, LoopbackFault fault) EXCLUDES(mu_);
  void Expect(int rank) EXCLUDES(mu_);          // first of all, so that Leave needs no memory
  void Join(int rank, int size) EXCLUDES(mu_);  // throws CommunicatorError
  struct Planted {
    uint64_t push = 0;
    bool any = false;
    LoopbackFault fault{};
  };
  Planted Count(int rank) EXCLUDES(mu_);
  void Run(int rank, const std::vector<Collective>& group, Planted planted) EXCLUDES(mu_);
  std::string failure() const EXCLUDES(mu_);
  // The rank takes part in nothing any more. That is a failure if `why` gives a reason, or if another rank waits for
  // it.
  void Leave(int rank, const std::string& why) noexcept EXCLUDES(mu_);
  bool Deserted() const EXCLUDES(mu_);  // all ranks have come and gone

 private:
  struct Visit {  // a push that is in Run; lies on its stack
    int rank;
    size_t open = 0;  // parts that are not done
  };
  struct Part {
    Visit* visit;
    std::vector<Collective> calls;
  };
  struct Rank {
    bool joined = false, gone = false;
    uint64_t pushes = 0, meetings = 0;
    std::map<uint64_t, LoopbackFault> faults;
  };
  Rank& At(int rank) REQUIRES(mu_);
  void Fail(const std::string& why) REQUIRES(mu_);
  void Meet(Part part) REQUIRES(mu_);
  void Exchange(Visit* visit, const Collective& call) REQUIRES(mu_);
  void Perform(const std::vector<Part>& parts) REQUIRES(mu_);

  mutable Mutex mu_;
  CondVar changed_;
  int size_ GUARDED_BY(mu_) = 0;  // 0: no rank has come
  std::vector<Rank> ranks_ GUARDED_BY(mu_);
  std::string failure_ GUARDED_BY(mu_);
  // By number; parts by rank; no calls: that rank has not come.
  std::map<uint64_t, std::vector<Part>> meetings_ GUARDED_BY(mu_);
  std::map<std::pair<int, int>, std::deque<Part>> sends_ GUARDED_BY(mu_), recvs_ GUARDED_BY(mu_);  // by (from, to)
};

// result[i] = the reduction of element i of all inputs, in the order of the inputs.
void ReduceInto(void* result, const std::vector<const void*>& inputs, size_t count, DataType type, Reduction reduction);

}  // namespace engine::detail
