// Random programs on a device: several lanes, copy lanes, host ops, waits, bulks, bulks that become graphs. Whatever the
// interleaving, the values are those of the program run line by line, and the happens-before oracle, which knows nothing
// of the engine, finds an order for every access.
#include "device_test.h"
#include "support/happens_before.h"
#include "support/seed.h"

namespace engine::test {
namespace {

using Clock = SoftwareDeviceOptions::Clock;
constexpr size_t kBuffers = 6, kSlots = 3, kLanes = 4, kBulks = 3;

uint64_t Mix(uint64_t a, uint64_t b, uint64_t id) {
  uint64_t z = a * 31 + b * 17 + id;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  return z ^ (z >> 27);
}

// A kernel: a new value of one buffer from its own and two others'.
struct Step {
  size_t to, from, other;
  bool overwrites;  // does not look at its own
  uint64_t id;
};

class Program {
 public:
  Program(Clock clock, uint64_t seed)
      : chance_(seed), oracle_(std::make_shared<HappensBefore>()), rig_(Options(clock, seed), 2) {
    for (size_t i = 0; i < kBuffers; ++i) vars_.push_back(rig_.eng().NewVar("buffer " + std::to_string(i)));
    for (size_t i = 0; i < kSlots; ++i) host_vars_.push_back(rig_.eng().NewVar("slot " + std::to_string(i)));
    for (auto& bulk : bulks_)
      for (uint64_t n = 2 + chance_.Below(4); n > 0; --n) bulk.push_back(Some());
  }
  void Run(int lines) {
    for (int i = 0; i < lines; ++i) Line();
    rig_.eng().WaitAll();
    EXPECT_EQ(buffers_, model_buffers_);
    EXPECT_EQ(slots_, model_slots_);
    EXPECT_EQ(oracle_->races(), std::vector<std::string>());
    EXPECT_GT(oracle_->checked(), 0u);
    const DeviceCounts counts = rig_.device().counts();
    EXPECT_EQ(counts[DeviceCall::kRecordPending], 0u) << "an event was recorded again while somebody may wait for it";
    EXPECT_EQ(counts[DeviceCall::kSynchronize], 0u);
  }
  uint64_t graph_launches() const { return rig_.engine->device_stats().graph_launches; }

 private:
  SoftwareDeviceOptions Options(Clock clock, uint64_t seed) const {
    SoftwareDeviceOptions options;
    options.clock = clock;
    options.seed = seed | 1;
    options.costs.host[static_cast<size_t>(DeviceCall::kQuery)] = std::chrono::microseconds(20);
    options.check_pointers = false;  // the buffers are the host's, so that the test can look at them
    options.observer = oracle_;
    return options;
  }
  Step Some() {
    return {chance_.Below(kBuffers), chance_.Below(kBuffers), chance_.Below(kBuffers), chance_.OneIn(3), ++ids_};
  }
  Placement Lane() { return chance_.OneIn(3) ? Gpu(0) : Gpu(0, static_cast<uint8_t>(chance_.Below(kLanes))); }
  OpDesc DescOf(const Step& s, std::array<VarRef, 2>* reads, Placement place) const {
    *reads = {vars_[s.from], vars_[s.other]};
    OpDesc desc{.name = "kernel", .reads = std::span<const VarRef>(*reads), .place = place};
    (s.overwrites && s.from != s.to && s.other != s.to ? desc.writes : desc.updates) = vars_[s.to];
    return desc;
  }
  static uint64_t After(const Step& s, const std::array<uint64_t, kBuffers>& values) {
    return Mix(values[s.from] + (s.overwrites ? 0 : values[s.to]), values[s.other], s.id);
  }
  auto KernelOf(const Step& s) {
    return [this, s](RunContext& ctx) {
      SoftwareKernel kernel{"kernel " + std::to_string(s.id),
                            std::chrono::microseconds(2),
                            [this, s] { buffers_[s.to] = After(s, buffers_); },
                            {}};
      kernel.uses = {{&buffers_[s.from], 8, false}, {&buffers_[s.other], 8, false}, {&buffers_[s.to], 8, true}};
      const DeviceStatus status = rig_.device().Launch(ctx.stream(), std::move(kernel));
      if (!status.ok()) throw DeviceError(status);
    };
  }
  void Line() {
    const size_t b = chance_.Below(kBuffers), s = chance_.Below(kSlots);
    std::array<VarRef, 2> reads{vars_[0], vars_[0]};
    switch (chance_.Below(12)) {
      case 0:  // to the device
        model_buffers_[b] = model_slots_[s];
        rig_.eng().Push({.name = "in", .reads = {host_vars_[s]}, .writes = {vars_[b]}, .place = CopyIn(0)},
                        [=, this](RunContext& ctx) {
                          const auto status =
                              ctx.device().CopyIn(&buffers_[b], &slots_[s], 8, ctx.stream(), MemoryKind::kPinned);
                          if (!status.ok()) throw DeviceError(status);
                        });
        return;
      case 1:  // and back
        model_slots_[s] = model_buffers_[b];
        rig_.eng().Push({.name = "out", .reads = {vars_[b]}, .writes = {host_vars_[s]}, .place = CopyOut(0)},
                        [=, this](RunContext& ctx) {
                          const auto status =
                              ctx.device().CopyOut(&slots_[s], &buffers_[b], 8, ctx.stream(), MemoryKind::kPinned);
                          if (!status.ok()) throw DeviceError(status);
                        });
        return;
      case 2:  // the host looks at a buffer and changes a slot
        model_slots_[s] = Mix(model_slots_[s], model_buffers_[b], 7);
        rig_.eng().Push({.name = "host", .reads = {vars_[b]}, .updates = {host_vars_[s]}}, [=, this] {
          oracle_->HostAccess("host", &buffers_[b], 8, false);
          oracle_->HostAccess("host", &slots_[s], 8, true);
          slots_[s] = Mix(slots_[s], buffers_[b], 7);
        });
        return;
      case 3:
        if (chance_.OneIn(3)) rig_.eng().Wait(vars_[b]);
        return;
      case 4:
      case 5:
      case 6: {  // a bulk that comes again
        const size_t which = chance_.Below(kBulks);
        const Placement place = Gpu(0, static_cast<uint8_t>(which));
        for (const Step& step : bulks_[which]) {
          model_buffers_[step.to] = After(step, model_buffers_);
          OpDesc desc = DescOf(step, &reads, place);
          desc.graph = {.kind = 100 * (which + 1) + step.id, .params = 1, .one_call = true};
          held_.Push(desc, KernelOf(step));
        }
        held_.Release();
        return;
      }
      case 7: {  // one that does not
        const Placement place = Lane();
        for (uint64_t n = 1 + chance_.Below(5); n > 0; --n) {
          const Step step = Some();
          model_buffers_[step.to] = After(step, model_buffers_);
          held_.Push(DescOf(step, &reads, place), KernelOf(step));
        }
        held_.Release();
        return;
      }
      default: {
        const Step step = Some();
        model_buffers_[step.to] = After(step, model_buffers_);
        rig_.eng().Push(DescOf(step, &reads, Lane()), KernelOf(step));
      }
    }
  }

  Random chance_;
  uint64_t ids_ = 0;
  std::array<uint64_t, kBuffers> buffers_{}, model_buffers_{};
  std::array<uint64_t, kSlots> slots_{}, model_slots_{};
  std::shared_ptr<HappensBefore> oracle_;
  Rig rig_;
  std::vector<Var> vars_, host_vars_;
  std::array<std::vector<Step>, kBulks> bulks_;
  HeldOps held_{rig_.eng()};
};

class RandomDevicePrograms : public testing::TestWithParam<Clock> {};

TEST_P(RandomDevicePrograms, GiveWhatTheLinesSayAndOrderEveryAccess) {
  uint64_t graphs = 0;
  for (uint64_t i = 0; i < 25; ++i) {
    const uint64_t seed = Seed() + i;
    SCOPED_TRACE("program " + std::to_string(i) + "; " + SeedLine());
    Program program(GetParam(), seed);
    program.Run(120);
    if (testing::Test::HasFailure()) return;
    graphs += program.graph_launches();
  }
  EXPECT_GT(graphs, 0u) << "no bulk has become a graph: the programs do not test what they are for";
}

INSTANTIATE_TEST_SUITE_P(Clocks, RandomDevicePrograms, testing::Values(Clock::kThreads, Clock::kVirtual),
                         [](const auto& p) { return p.param == Clock::kThreads ? "Threads" : "Virtual"; });

}  // namespace
}  // namespace engine::test
