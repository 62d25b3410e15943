// Row 13: an all-reduce as an op against NCCL's own call, in a communicator of one rank: the way to the call, not the network.
#include "engine/comm.h"
#include "rig.h"
#include "suite.h"

namespace engine::perf {

void CollectiveRows(Suite& suite) {
  if (!suite.Wants(13)) return;
  std::string why;
  const auto raw = MakeRawAllReduce(suite.target, &why);
  if (!raw) return suite.Absent(13, why);
  constexpr size_t kFloats = size_t{1} << 20;
  Rig rig(suite.target);
  const auto hand = suite.target.MakeByHand(1);
  void* const from = hand->Allocate(kFloats * sizeof(float), 0);
  void* const to = hand->Allocate(kFloats * sizeof(float), 0);
  hand->Synchronize();
  Communicator comm(rig.eng, {.id = NewCommunicatorId(*suite.target.device())});
  const Var a = rig.eng.NewVar("a");
  const int n = suite.Count(200);
  const auto ours = [&] {
    return Figures{NanosOf(
        [&] {
          for (int i = 0; i < n; ++i)
            comm.Push(rig.eng, {.name = "all-reduce", .updates = a}, {Collective::AllReduce(from, to, kFloats)});
          rig.eng.Wait(a);
        },
        n)};
  };
  const auto by_hand = [&] {
    return Figures{NanosOf(
        [&] {
          for (int i = 0; i < n; ++i) Must(raw->Run(from, to, kFloats, hand->Native(0)));
          hand->Synchronize();
        },
        n)};
  };
  suite.Measure({13,
                 "all-reduce, one rank, 4 MiB to another buffer",
                 "raw NCCL",
                 {{"time a call", "ns", Ratio(1.03)}},
                 ours,
                 by_hand});
  rig.eng.WaitAll();
  hand->Free(from, 0);
  hand->Free(to, 0);
  hand->Synchronize();
}

}  // namespace engine::perf
