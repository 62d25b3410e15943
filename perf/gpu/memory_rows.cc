// Row 11: memory that goes from lane to lane. Ours by ctx.Allocate, as programs do; by hand from a pool of the driver.
#include "rig.h"
#include "suite.h"

namespace engine::perf {

void MemoryRows(Suite& suite) {
  if (!suite.Wants(11)) return;
  constexpr size_t kBytes = size_t{1} << 20;
  Rig rig(suite.target);
  const auto hand = suite.target.MakeByHand(2, 1);
  const Var a = rig.eng.NewVar("a");
  const int n = suite.Count(500);
  DeviceMemory memory;
  const auto ours = [&] {
    return Figures{NanosOf(
        [&] {
          for (int i = 0; i < n; ++i) {
            rig.eng.Push({.name = "allocate", .updates = a, .place = Gpu(0, 0)}, [&](RunContext& ctx) {
              memory = ctx.Allocate(kBytes);
              Must(suite.target.Spin(ctx.stream(), {}));
            });
            rig.eng.Push({.name = "free", .updates = a, .place = Gpu(0, 1)}, [&](RunContext& ctx) {
              Must(suite.target.Spin(ctx.stream(), {}));
              memory.Reset();
            });
          }
          rig.eng.Wait(a);
        },
        n)};
  };
  const auto by_hand = [&] {
    return Figures{NanosOf(
        [&] {
          const auto pass = [&](size_t from, size_t to) {
            hand->Record(0, from);
            hand->Wait(to, 0);
          };
          for (int i = 0; i < n; ++i) {
            void* const block = hand->Allocate(kBytes, 0);
            hand->Spin(0);
            pass(0, 1);
            hand->Spin(1);
            hand->Free(block, 1);
            pass(1, 0);
          }
          hand->Synchronize(0);
        },
        n)};
  };
  suite.Measure({11,
                 "allocate on one lane, free on another",
                 "the driver's pool by hand",
                 {{"time a pair", "ns", {}}},
                 ours,
                 by_hand});
}

}  // namespace engine::perf
