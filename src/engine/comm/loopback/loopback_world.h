// LoopbackWorld: where the ranks of one loopback communicator meet, in memory.
//
// A push of a rank comes here twice: when it is issued (Count, which says whether a fault was planted there), and when its
// stream gets to it (Run), which returns when all that it takes part in is done: its collectives as one meeting of all ranks,
// each send and recv with its other side. Whoever comes last to a meeting does the work for everybody.
//
// Threads:   any; one lock. Run blocks, as a kernel of a real library does, until the rest is there or its rank is aborted.
// Ownership: shared by the ranks; found by id until all of them have gone.
// Errors:    the first failure is everybody's, and lasts: nothing is matched after it. Ranks learn it by failure().
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
  static void Forget(const CommunicatorId& id);                        // once nobody can come any more

  void Plant(int rank, uint64_t nth, LoopbackFault fault) EXCLUDES(mu_);
  void Join(int rank, int size) EXCLUDES(mu_);  // throws CommunicatorError
  struct Planted {
    uint64_t push = 0;
    bool any = false;
    LoopbackFault fault{};
  };
  Planted Count(int rank) EXCLUDES(mu_);
  void Run(int rank, const std::vector<Collective>& group, Planted planted) EXCLUDES(mu_);
  std::string failure() const EXCLUDES(mu_);
  // The rank takes part in nothing any more. With a reason, that is a failure; without, if somebody waits for it.
  void Leave(int rank, const std::string& why) EXCLUDES(mu_);
  bool Deserted() const EXCLUDES(mu_);  // all ranks have come, and have gone

 private:
  struct Visit {  // of a push in Run; on its stack
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
  int size_ GUARDED_BY(mu_) = 0;  // 0: nobody has come
  std::vector<Rank> ranks_ GUARDED_BY(mu_);
  std::string failure_ GUARDED_BY(mu_);
  std::map<uint64_t, std::vector<Part>> meetings_ GUARDED_BY(mu_);  // by number; parts by rank, calls empty: not there
  std::map<std::pair<int, int>, std::deque<Part>> sends_ GUARDED_BY(mu_), recvs_ GUARDED_BY(mu_);  // by (from, to)
};

// result[i] = reduction over the inputs of their element i, in their order.
void ReduceInto(void* result, const std::vector<const void*>& inputs, size_t count, DataType type, Reduction reduction);

}  // namespace engine::detail
