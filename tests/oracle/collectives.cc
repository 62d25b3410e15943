// Collectives of two ranks in memory. Each step changes a number on both devices and adds the two up, while all other
// threads use the same engine. The Vars are their own, because the ranks wait for each other.
#include "engine/comm.h"
#include "engine/testing/loopback.h"
#include "engine/testing/software_device.h"
#include "world.h"

namespace engine::oracle {

void World::CollectivesMain() {
  constexpr int kSteps = 25;
  constexpr size_t kRanks = 2;
  Random random(seed_ * 15485863);
  const auto check = [](const DeviceStatus& status) {
    if (!status.ok()) throw DeviceError(status);
  };
  struct Rank {
    DeviceMemory memory;  // one number
    Var var;
  };
  Rank ranks[kRanks];
  uint64_t expected[kRanks] = {1, 2};
  const auto kernel = [&](size_t r, OpDesc desc, std::function<void(uint64_t*)> body) {
    desc.place = Gpu(static_cast<uint16_t>(r));
    Rank& rank = ranks[r];
    eng_->Push(desc, [&rank, check, body = std::move(body)](RunContext& ctx) {
      if (!rank.memory) rank.memory = ctx.Allocate(sizeof(uint64_t));
      auto* const number = static_cast<uint64_t*>(rank.memory.data());
      check(static_cast<SoftwareDevice&>(ctx.device())
                .Launch(ctx.stream(), "kernel", std::chrono::nanoseconds(0), [body, number] { body(number); }));
    });
  };
  std::vector<Communicator> comms;
  // The body allocates the memory, and a collective names it at its push; so the collective is pushed after that body.
  try {
    for (size_t r = 0; r < kRanks; ++r) {
      ranks[r].var = eng_->NewVar();
      kernel(r, {.name = "first", .writes = {ranks[r].var}},
             [first = expected[r]](uint64_t* number) { *number = first; });
    }
    for (Rank& rank : ranks) eng_->Wait(rank.var);
    const int devices[] = {0, 1};
    comms = NewCommunicators(*eng_, devices);
    for (int step = 0; step < kSteps; ++step) {
      const uint64_t add = random.Below(1000);
      const auto bulk = Has(kBulks) && random.OneIn(3) ? std::make_unique<Bulk>(*eng_, 8) : nullptr;
      for (size_t r = 0; r < kRanks; ++r) {
        kernel(r, {.name = "add", .updates = {ranks[r].var}}, [add, r](uint64_t* number) { *number += add + r; });
        expected[r] += add + r;
      }
      for (size_t r = 0; r < kRanks; ++r) {
        void* const data = ranks[r].memory.data();
        comms[r].Push(*eng_, {.name = "all_reduce", .updates = {ranks[r].var}},
                      {Collective::AllReduce(data, data, 1, DataType::kUint64)});
      }
      expected[0] = expected[1] = expected[0] + expected[1];
      noise_.Point(1, static_cast<uint64_t>(step));
      if (!random.OneIn(4)) continue;
      for (size_t r = 0; r < kRanks; ++r)
        kernel(r, {.name = "look", .reads = {ranks[r].var}}, [this, r, step, right = expected[r]](uint64_t* number) {
          if (*number != right) log_.Complain("rank %zu has another sum than it should in step %d", r, step);
        });
    }
    for (Rank& rank : ranks) eng_->Wait(rank.var);
    for (Rank& rank : ranks) {
      eng_->WaitToWrite(rank.var);
      rank.memory.Reset();
    }
  } catch (const Error& error) {
    if (shutdown_begin_ == kNever) log_.Complain("collectives: %s", error.what());
    if (shutdown_begin_ == kNever) return;
    for (Communicator& comm : comms)
      comm.Abort("the engine is shut down");  // one rank may wait for a collective of the other that was refused
    eng_->Shutdown();                         // before this stack goes, because bodies use it
  }
}

}  // namespace engine::oracle
