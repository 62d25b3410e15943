// Random steps with random effects, orders, failures and options, staged and whole, against the plain loop over the whole
// plan: outputs, errors and the states behind the Vars are the same bit for bit. And the guard on a virtual clock.
#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "engine/smart_stage.h"
#include "partition.h"
#include "staging_guard.h"
#include "support/engine_test.h"
#include "support/seed.h"

namespace engine::test {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15ull)) * 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 29);
}

constexpr uint32_t kVars = 5;

struct Step {
  Step(Engine& engine, uint64_t seed, bool with_failures) : eng(engine) {
    Random random(seed);
    for (uint32_t v = 0; v < kVars; ++v) vars.push_back(eng.NewVar("state"));
    row = graph.Input<uint64_t>("row");
    rate = graph.Input<uint64_t>("rate");
    std::vector<ValueId> made{row, row, rate};
    std::vector<NodeId> nodes;
    const uint64_t count = 2 + random.Below(9), failing = with_failures ? random.Below(count) : count;
    for (uint64_t n = 0; n < count; ++n) {
      NodeDesc desc{.name = Name::Intern("node-" + std::to_string(n)), .outputs = 1};
      for (uint64_t i = 1 + random.Below(2); i > 0; --i) {
        // Late nodes prefer late values, so that there is something to stage in front of them.
        desc.inputs.push_back(random.OneIn(3) ? made[random.Below(made.size())] : made.back());
        if (n < count / 2 && desc.inputs.back() == rate) desc.inputs.back() = row;
      }
      // Vars 0 and 1 belong to the first half, the others to the second, but for some.
      uint32_t var = kVars;
      bool reads = false;
      std::vector<Var> touched;
      if (random.OneIn(2)) {
        var = static_cast<uint32_t>(random.OneIn(5) ? random.Below(kVars)
                                    : n < count / 2 ? random.Below(2)
                                                    : 2 + random.Below(3));
        reads = random.OneIn(2);
        touched = {vars[var]};
        (reads ? desc.reads : desc.updates) = touched;
      }
      const bool fails = n == failing;
      nodes.push_back(graph.Add(desc, [this, n, var, reads, fails](NodeContext& ctx) {
        uint64_t x = n;
        for (size_t i = 0; i < ctx.inputs(); ++i) x = Mix(x, ctx.In<uint64_t>(i));
        if (fails && x % 5 == 0) throw std::domain_error("bad row");
        if (x % 7 == 0) std::this_thread::yield();
        if (var < kVars) {
          x = Mix(x, state[var]);
          if (!reads) state[var] = x;
        }
        ctx.Return(0, x);
      }));
      if (n > 0 && random.OneIn(6)) graph.Order(nodes[random.Below(n)], nodes[n]);
      made.push_back(nodes[n][0]);
      if (random.OneIn(3)) graph.Output(nodes[n][0]);
    }
    graph.Output(made.back());
  }

  // What a step gave, or the error that it failed with; then clears what the error poisoned, as a program that goes on.
  std::string Told(engine::Run& run) {
    std::string text;
    for (size_t i = 0; i < graph.outputs().size(); ++i) {
      const Value* made = run.OutputIf(i);
      text += made ? std::to_string(run.OutputIf(i)->Get<uint64_t>()) + " " : "- ";
    }
    try {
      run.Wait();
    } catch (const OpError& error) {
      text += error.op();
      try {
        error.RethrowCause();
      } catch (const std::exception& cause) {
        text += std::string(": ") + cause.what();
      }
    }
    return text;
  }

  Engine& eng;
  std::vector<Var> vars;
  Graph graph;
  ValueId row, rate;
  std::array<uint64_t, kVars> state{};
};

SmartStageOptions RandomOptions(Random& random) {
  return {.stage = {.capacity = 1 + random.Below(4),
                    .num_threads = 1 + static_cast<int>(random.Below(3)),
                    .autotune = random.OneIn(4),
                    .max_threads = 3},
          .max_levels = 1 + static_cast<int>(random.Below(3)),
          .profile_steps = static_cast<int>(random.Below(3)),
          .guard_steps = static_cast<int>(random.Below(3))};
}

void Check(Engine& eng, uint64_t seed) {
  Random random(seed);
  const bool failures = random.OneIn(3);
  const uint64_t length = random.Below(40);
  Step plain(eng, seed, failures), smart(eng, seed, failures);
  std::vector<std::string> expected, seen;
  const Plan plan = plain.graph.Compile(eng);
  for (uint64_t i = 0; i < length; ++i) {
    Value inputs[] = {i, 2 * i};
    engine::Run run = plan.Start(inputs);
    expected.push_back(plain.Told(run));
  }
  const uint64_t stop = random.OneIn(4) ? random.Below(40) : UINT64_MAX;  // then it is cancelled
  SmartStageOptions options = RandomOptions(random);
  for (uint32_t v = 0; v < 3; ++v) {
    if (!random.OneIn(4)) options.input_state.push_back(smart.vars[v]);
  }
  std::string text;
  {
    uint64_t next = 0;
    SmartStage steps(eng, smart.graph,
                     {SourceOf<uint64_t>("rows", smart.row,
                                         [&]() -> std::optional<uint64_t> {
                                           if (next == length) return {};
                                           return next++;
                                         })},
                     options);
    for (uint64_t i = 0; i < stop; ++i) {
      Value given[] = {2 * i};
      engine::Run run = steps.Next(given);
      if (!run) break;
      seen.push_back(smart.Told(run));
      EXPECT_EQ(steps.stats().position, i + 1);
    }
    text = steps.Explain();
  }
  SCOPED_TRACE(text);
  ASSERT_EQ(seen.size(), std::min(length, stop));
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), expected.begin())) << testing::PrintToString(seen) << "\n"
                                                                      << testing::PrintToString(expected);
  if (stop >= length) {  // otherwise the states of the stage's own are ahead
    EXPECT_EQ(smart.state, plain.state);
  }
}

TEST(SmartRandomTest, NobodyCanTellByTheResults) {
  SCOPED_TRACE(SeedLine());
  Random seeds(Seed());
  EngineOptions options = Quiet(2);
  options.on_unobserved = [](const OpError&) {};
  Engine eng(options);
  for (int i = 0; i < (kSanitized ? 150 : 600) && !testing::Test::HasFailure(); ++i) {
    const uint64_t seed = seeds.Next();
    SCOPED_TRACE("step " + std::to_string(i) + " of seed " + std::to_string(seed));
    Check(eng, seed);
  }
}

// --- the guard, on a virtual clock

using detail::Cut;
using detail::StagingGuard;
using detail::StepGraph;

StepGraph RandomStep(Random& random) {
  StepGraph graph;
  graph.vars = {"a", "b", "c"};
  const uint32_t count = 2 + static_cast<uint32_t>(random.Below(9));
  for (uint32_t n = 0; n < count; ++n) {
    graph.values.push_back({.name = "v", .bytes = random.Below(1000)});
    StepGraph::Node node{.name = "n", .inputs = {}, .outputs = {n}, .effects = {}, .after = {}};
    node.source = n == 0;
    if (n > 0) node.inputs = {static_cast<uint32_t>(n - 1 - random.Below(std::min(n, 2u)))};
    if (random.OneIn(4)) {
      node.effects = {
          {static_cast<uint32_t>(random.Below(3)), random.OneIn(2) ? AccessMode::kRead : AccessMode::kUpdate}};
    }
    node.seconds = static_cast<double>(1 + random.Below(1000)) * 1e-6;
    graph.nodes.push_back(node);
  }
  return graph;
}

// A stage with a buffer in front of the rest, step by step: when steps begin.
class VirtualPipeline {
 public:
  VirtualPipeline(double stage, double rest, size_t capacity) : stage_(stage), rest_(rest), capacity_(capacity) {}
  // The time from the beginning of this step to the beginning of the next.
  double Step() {
    const size_t i = taken_.size();
    // Item i is begun when the one before is done and, with what is buffered and one in hand, there is a place for it.
    double begin = made_.empty() ? 0 : made_.back();
    if (i > capacity_) begin = std::max(begin, taken_[i - capacity_ - 1]);
    made_.push_back(begin + stage_);
    const double ready = std::max(made_.back(), free_);
    taken_.push_back(ready);
    const double before = free_;
    free_ = ready + rest_;
    return free_ - before;
  }

 private:
  double stage_, rest_, free_ = 0;
  size_t capacity_;
  std::vector<double> made_, taken_;
};

TEST(SmartRandomTest, TheGuardChoosesTheFasterWayExactly) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 7);
  int on = 0, off = 0;
  for (int i = 0; i < 2000; ++i) {
    StepGraph graph = RandomStep(random);
    const Cut cut = Partition(graph, {.seconds = 1e-6});
    if (cut.staged.empty()) continue;
    // What the machine really does differs from what was predicted: no cores, slow memory, costs that were wrong.
    const double drag = random.OneIn(2) ? 1 : 0.5 + static_cast<double>(random.Below(200)) / 100;
    const size_t capacity = 1 + random.Below(6);
    const double stage = cut.stage_seconds * drag, rest = cut.main_seconds * drag;
    const double staged = std::max(stage, rest), whole = cut.serial_seconds;
    StagingGuard guard(static_cast<int>(capacity) + 3, 4);
    std::optional<VirtualPipeline> pipeline;
    std::optional<detail::Ends> ends(std::in_place);
    double now = 0;
    while (!guard.decided()) {
      if (guard.on() && !pipeline) pipeline.emplace(stage, rest, capacity);
      const double begin = now;
      ends->Add(guard.started(), now += guard.on() ? pipeline->Step() : whole);
      if (!guard.Started(*ends, begin, begin)) continue;
      ends.emplace();
      pipeline.reset();
    }
    // As fast as each other but for the last bits: either is right.
    if (std::abs(staged - whole) < 1e-12) continue;
    EXPECT_EQ(guard.on(), staged < whole)
        << staged << " " << whole << " measured " << guard.staged_seconds() << " " << guard.whole_seconds();
    ++(guard.on() ? on : off);
  }
  EXPECT_GT(on, 100);
  EXPECT_GT(off, 100);
}

// A program that keeps `depth` steps in flight: when they end. Whole, the caller reads, and parsing runs beside the training
// of the steps before, or, on one `worker`, in turn with it; staged, the stage reads and parses, one item after the other.
class VirtualProgram {
 public:
  VirtualProgram(double read, double parse, double train, size_t capacity, size_t depth, bool one_worker)
      : read_(read), parse_(parse), train_(train), capacity_(capacity), depth_(depth), one_worker_(one_worker) {}
  // Starts a step, and returns when it will end.
  double Start(bool staged) {
    if (staged != staged_) made_.clear(), taken_.clear();
    staged_ = staged;
    if (ends_.size() >= depth_) now_ = std::max(now_, ends_[ends_.size() - depth_]);
    const double before = ends_.empty() ? 0 : ends_.back();
    double ready = 0;
    if (staged) {
      const size_t i = taken_.size();
      double begin = made_.empty() ? now_ : made_.back();
      if (i > capacity_) begin = std::max(begin, taken_[i - capacity_ - 1]);
      made_.push_back(begin + read_ + parse_);
      ready = now_ = std::max(now_, made_.back());
      taken_.push_back(now_);
    } else {
      now_ += read_;
      ready = (one_worker_ ? std::max(now_, before) : now_) + parse_;
    }
    ends_.push_back(std::max(ready, before) + train_);
    return ends_.back();
  }
  double now() const { return now_; }
  // Of one step, in the long run.
  double Pace(bool staged) {
    for (int i = 0; i < 300; ++i) Start(staged);
    const double from = ends_.back();
    for (int i = 0; i < 300; ++i) Start(staged);
    return (ends_.back() - from) / 300;
  }

 private:
  double read_, parse_, train_;
  size_t capacity_, depth_;
  bool one_worker_;
  bool staged_ = false;
  double now_ = 0;
  std::vector<double> made_, taken_, ends_;
};

TEST(SmartRandomTest, TheGuardChoosesTheFasterWayForCallersThatDoNotWait) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 9);
  int on = 0, off = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto cost = [&](uint64_t most) { return static_cast<double>(1 + random.Below(most)); };
    const double read = cost(1000), parse = cost(1000), train = cost(1000);
    const size_t capacity = 1 + random.Below(4), depth = 1 + random.Below(40);
    const bool one_worker = random.OneIn(2);
    const auto program = [&] { return VirtualProgram(read, parse, train, capacity, depth, one_worker); };
    const double staged = program().Pace(true), whole = program().Pace(false);
    if (std::abs(staged - whole) < 0.1 * whole) continue;
    StagingGuard guard(static_cast<int>(capacity) + 3, 16);
    VirtualProgram real = program();
    std::optional<detail::Ends> ends(std::in_place);
    std::vector<double> coming;
    size_t seen = 0;
    while (!guard.decided()) {
      const double asked = real.now();
      coming.push_back(real.Start(guard.on()));
      for (; seen < coming.size() && coming[seen] <= real.now(); ++seen) ends->Add(seen, coming[seen]);
      if (!guard.Started(*ends, asked, real.now())) continue;
      ends.emplace();
      coming.clear();
      seen = 0;
    }
    EXPECT_EQ(guard.on(), staged < whole)
        << read << " " << parse << " " << train << " capacity " << capacity << " depth " << depth << " one worker "
        << one_worker << ": " << staged << " " << whole << " measured " << guard.staged_seconds() << " "
        << guard.whole_seconds();
    ++(guard.on() ? on : off);
  }
  EXPECT_GT(on, 100);
  EXPECT_GT(off, 100);
}

TEST(SmartRandomTest, APauseOfTheCallersSaysNothingOfEitherWay) {
  for (const bool faster : {false, true}) {
    StagingGuard guard(2, 8);
    const double whole = 1, staged = faster ? 0.9 : 1.1;
    double now = 0;
    std::optional<detail::Ends> ends(std::in_place);
    int paused = 0;
    while (!guard.decided()) {
      const bool better = guard.on() == faster;
      if (better && guard.started() == 4) now += 100, ++paused;  // in every turn of the better way
      const double asked = now += 0.25;                          // the caller's own work
      now += guard.on() ? staged : whole;
      ends->Add(guard.started(), now);
      if (guard.Started(*ends, asked, asked)) ends.emplace();
    }
    EXPECT_GE(paused, 1);
    EXPECT_EQ(guard.on(), faster);
    EXPECT_NEAR(guard.staged_seconds(), staged + 0.25,
                0.25 / 3 + 1e-9);  // its own work in that step goes with the pause
    EXPECT_NEAR(guard.whole_seconds(), whole + 0.25, 0.25 / 3 + 1e-9);
  }
}

// Steps of the guard until it has decided, for a caller that waits for each step, and whether it stays staged.
std::pair<int, bool> StepsToDecide(double whole, double staged, const std::function<double()>& jitter) {
  StagingGuard guard(4, 16);
  std::optional<detail::Ends> ends(std::in_place);
  double now = 0;
  int steps = 0;
  while (!guard.decided()) {
    if (guard.Look(*ends)) ends.emplace();
    if (guard.decided()) break;
    const double asked = now, seconds = (guard.on() ? staged : whole) * jitter();
    const bool over = guard.Started(*ends, asked, asked);
    now += seconds;
    if (over) {
      ends.emplace();
    } else {
      ends->Add(guard.started() - 1, now);
    }
    ++steps;
  }
  return {steps, guard.on()};
}

// With the eight steps that are timed before the cut that makes 24.
TEST(SmartRandomTest, AClearGainIsDecidedWithinSixteenSteps) {
  const auto even = [] { return 1.0; };
  EXPECT_EQ(StepsToDecide(1, 0.7, even), std::pair(12, true));
  EXPECT_EQ(StepsToDecide(1, 1.2, even), std::pair(12, false));
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 11);
  const auto uneven = [&] { return 0.99 + static_cast<double>(random.Below(200)) / 10000; };  // by one percent
  for (int i = 0; i < 200; ++i) {
    const auto [steps, on] = StepsToDecide(1, i % 2 ? 0.8 : 1.25, uneven);
    EXPECT_LE(steps, 16);
    EXPECT_EQ(on, i % 2 == 1);
  }
}

TEST(SmartRandomTest, UnevenStepsAreMeasuredForLonger) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 12);
  const auto uneven = [&] { return 0.7 + static_cast<double>(random.Below(6000)) / 10000; };
  int longer = 0;
  for (int i = 0; i < 100; ++i) longer += StepsToDecide(1, 0.9, uneven).first > 20;
  EXPECT_GT(longer, 80);
}

TEST(SmartRandomTest, WhatIsWithinTheNoiseIsNoReasonToStage) {
  for (const double gain : {0.01, 0.1}) {
    StagingGuard guard(2, 8);
    double now = 0;
    std::optional<detail::Ends> ends(std::in_place);
    for (int turn = 0; !guard.decided();) {
      const double asked = now;
      now += (guard.on() ? 1 - gain : 1) * (turn < 2 ? 1.02 : 1);  // the machine has become faster by 2 %
      ends->Add(guard.started(), now);
      if (!guard.Started(*ends, asked, asked)) continue;
      ends.emplace();
      ++turn;
    }
    EXPECT_EQ(guard.on(), gain == 0.1);
  }
}

TEST(SmartRandomTest, LevelsKeepOrderAndSlowestIsLeast) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed() + 8);
  for (int i = 0; i < 500; ++i) {
    const StepGraph graph = RandomStep(random);
    const Cut cut = Partition(graph, {}, detail::Choice::kLargest);
    const auto levels = Levels(graph, cut, 3);
    std::vector<uint32_t> all;
    double slowest = 0;
    for (const auto& level : levels) {
      double sum = 0;
      for (uint32_t n : level) sum += graph.nodes[n].seconds;
      slowest = std::max(slowest, sum);
      all.insert(all.end(), level.begin(), level.end());
    }
    EXPECT_EQ(all, cut.staged);
    // Against every way to cut the list twice.
    const auto legal = [&](size_t at) {
      for (size_t a = 0; a < at; ++a)
        for (size_t b = at; b < all.size(); ++b)
          for (const auto& x : graph.nodes[all[a]].effects)
            for (const auto& y : graph.nodes[all[b]].effects)
              if (x.var == y.var && (x.mode != AccessMode::kRead || y.mode != AccessMode::kRead)) return false;
      return true;
    };
    const auto sum = [&](size_t from, size_t to) {
      double seconds = 0;
      for (size_t n = from; n < to; ++n) seconds += graph.nodes[all[n]].seconds;
      return seconds;
    };
    double best = sum(0, all.size());
    for (size_t a = 0; a <= all.size(); ++a)
      for (size_t b = a; b <= all.size(); ++b)
        if (legal(a) && legal(b)) best = std::min(best, std::max({sum(0, a), sum(a, b), sum(b, all.size())}));
    EXPECT_NEAR(slowest, best, 1e-12);
  }
}

}  // namespace
}  // namespace engine::test
