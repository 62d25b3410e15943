// Collectives of two ranks in memory. Each step changes a number on both devices and adds the two up, while all other
// threads use the same engine. The Vars are their own, because the ranks wait for each other.
#include <cinttypes>
#include <deque>
#include <functional>

#include "engine/testing/loopback.h"
#include "engine/testing/software_device.h"
#include "world.h"

namespace engine::oracle {

namespace {

constexpr size_t kRanks = 2;

struct Rank {
  DeviceMemory memory;  // one number
  Var var;
};
// A kernel that looked at a sum. If it was another one than it should be, its op must have failed.
struct Look {
  Var var;
  size_t rank;
  int round, step;
  uint64_t right;
  std::atomic<uint64_t> saw;
};

}  // namespace

void World::CollectivesMain() {
  constexpr int kSteps = 25;
  Random random(seed_ * 15485863);
  const auto check = [](const DeviceStatus& status) {
    if (!status.ok()) throw DeviceError(status);
  };
  const auto ranks_owned = std::make_unique<Rank[]>(kRanks);
  Rank* const ranks = ranks_owned.get();
  std::deque<Look> looks;
  uint64_t expected[kRanks] = {};
  int round = 0;
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
  const auto owned = std::make_unique<std::vector<Communicator>>();  // not on this thread's stack: see StagesMain
  std::vector<Communicator>& comms = *owned;
  const auto publish = [this](std::vector<Communicator>* now) {
    std::lock_guard lock(others_mu_);
    comms_ = now;
  };
  const std::unique_ptr<World, std::function<void(World*)>> unpublish(this, [&](World*) { publish(nullptr); });
  // The body allocates the memory, and a collective names it at its push; so the collective is pushed after that body.
  const auto first = [&] {
    ++round;
    for (size_t r = 0; r < kRanks; ++r) {
      if (!ranks[r].var) ranks[r].var = eng_->NewVar();
      expected[r] = r + 1;
      kernel(r, {.name = "first", .writes = {ranks[r].var}}, [r](uint64_t* number) { *number = r + 1; });
    }
    for (size_t r = 0; r < kRanks; ++r) eng_->Wait(ranks[r].var);
  };
  const auto one_step = [&](int step) {
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
    if (!random.OneIn(4)) return;
    for (size_t r = 0; r < kRanks; ++r) {
      Look& look = looks.emplace_back(eng_->NewVar(), r, round, step, expected[r], ~expected[r]);
      kernel(r, {.name = "look", .reads = {ranks[r].var}, .writes = {look.var}},
             [&look](uint64_t* number) { look.saw = *number; });
    }
  };
  const auto fails = [&](const Var& var) {
    try {
      eng_->Wait(var);
      return false;
    } catch (const OpError& error) {
      log_.Shown(error);
      return true;
    }
  };
  // One rank's push is refused, fails after it was issued, or hangs: the collective fails on both ranks, and so does what needs it.
  const auto faulty_round = [&] {
    const auto size = static_cast<int>(kRanks);
    const CommunicatorId id = NewCommunicatorId("software");
    const auto fault = static_cast<LoopbackFault>(random.Below(3));
    PlantLoopbackFault(id, static_cast<int>(random.Below(kRanks)), 1 + random.Below(kSteps), fault);
    for (int r = 0; r < size; ++r)
      comms.emplace_back(*eng_, CommunicatorOptions{.name = "faulty", .device = r, .rank = r, .size = size, .id = id});
    publish(&comms);
    for (int step = 0; step < kSteps; ++step) one_step(step);
    if (fault == LoopbackFault::kNeverComes) comms[random.Below(kRanks)].Abort("it hangs");
    for (size_t r = 0; r < kRanks; ++r)
      if (!fails(ranks[r].var)) log_.Complain("rank %zu did not fail with its collective", r);
    publish(nullptr);
    comms.clear();
  };
  try {
    first();
    if (Has(kCollectiveFaults))
      for (uint64_t more = 1 + random.Below(3); more > 0; --more) {
        faulty_round();
        first();  // overwrites what has failed
      }
    const int devices[] = {0, 1};
    comms = NewCommunicators(*eng_, devices);
    publish(&comms);
    for (int step = 0; step < kSteps; ++step) one_step(step);
    for (size_t r = 0; r < kRanks; ++r) eng_->Wait(ranks[r].var);
    for (size_t r = 0; r < kRanks; ++r) {
      eng_->WaitToWrite(ranks[r].var);
      ranks[r].memory.Reset();
    }
    for (const Look& look : looks)
      if (!fails(look.var) && look.saw != look.right)
        log_.Complain("rank %zu has %" PRIu64 " in step %d of round %d, and should have %" PRIu64, look.rank,
                      look.saw.load(), look.step, look.round, look.right);
  } catch (const Error& error) {
    if (shutdown_begin_ == kNever) log_.Complain("collectives: %s", error.what());
    if (shutdown_begin_ == kNever) return;
    for (Communicator& comm : comms)
      comm.Abort("the engine is shut down");  // one rank may wait for a collective of the other that was refused
    eng_->Shutdown();                         // before this stack goes, because bodies use it
  }
}

}  // namespace engine::oracle
