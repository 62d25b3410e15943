// Contract 9: policy, number of workers, tracing and spinning change speed, never values, errors or names.
#include "support/engine_test.h"
#include "support/seed.h"

namespace engine::test {
namespace {

struct Meaning {
  std::vector<double> values;
  std::vector<std::string> errors;  // of each Var: op, path, cause; "" if none
  std::vector<uint64_t> versions;
  uint64_t skipped = 0;
  bool operator==(const Meaning&) const = default;
};

// One program, the same for every engine: reads, updates, writes, failures, clears, run_always, cancelled ops.
Meaning MeaningOf(EngineOptions options, uint64_t seed, bool traced) {
  constexpr size_t kVars = 12;
  constexpr int kOps = 600;
  Engine eng(std::move(options));
  if (traced) eng.StartTrace();
  Random random(seed);
  CancelScope cancelled;
  cancelled.Cancel();
  std::vector<Var> vars;
  std::vector<double> x(kVars, 1.0);
  for (size_t i = 0; i < kVars; ++i) vars.push_back(eng.NewVar("v" + std::to_string(i)));
  for (int i = 0; i < kOps; ++i) {
    const size_t r = random.Below(kVars), u = random.Below(kVars), w = random.Below(kVars);
    const bool fails = random.OneIn(12), always = random.OneIn(6);
    const Name name = Name::Intern("op" + std::to_string(i));
    const auto body = [&x, r, u, w, i, fails] {
      x[u] = 0.5 * x[u] + 0.25 * x[r] + i;
      if (w != r && w != u) x[w] = x[r] - i;
      if (fails) throw std::runtime_error("failure of op " + std::to_string(i));
    };
    switch (random.Below(8)) {
      case 0: eng.ClearError(vars[u]); break;
      case 1:
        eng.PushAsync({.name = name, .reads = {vars[r]}, .updates = {vars[u]}, .writes = {vars[w]}},
                      [body](RunContext&, Completion done) {
                        body();
                        done();
                      });
        break;
      case 2: eng.Push({.name = name, .writes = {vars[w]}}, [&x, w, i] { x[w] = i; }); break;
      case 3:
        if (random.OneIn(4)) {
          eng.Push({.name = name, .updates = {vars[u]}, .cancel = &cancelled}, body);
          break;
        }
        [[fallthrough]];
      default:
        eng.Push({.name = name,
                  .reads = {vars[r]},
                  .updates = {vars[u]},
                  .writes = {vars[w]},
                  .priority = static_cast<int>(random.Below(5)) - 2,
                  .run_always = always},
                 body);
    }
  }
  Meaning meaning;
  for (const Var& v : vars) {
    std::string text;
    try {
      eng.Wait(v);
    } catch (const OpError& e) {
      text = e.op() + ":";
      for (const auto& hop : e.path()) text += " " + hop.op;
      text += " / " + std::string(e.what());
    }
    meaning.errors.push_back(text);
    meaning.versions.push_back(v.version());
  }
  try {
    eng.WaitAll();
  } catch (const OpError&) {  // what the Vars do not carry any more
  }
  meaning.values = x;
  meaning.skipped = eng.stats().skipped;
  return meaning;
}

TEST(OneMeaningTest, PolicyWorkersAndTracingChangeNothing) {
  SCOPED_TRACE(SeedLine());
  for (uint64_t program = 0; program < (kSanitized ? 3 : 10); ++program) {
    const uint64_t seed = Seed() + program;
    EngineOptions naive = Quiet(0);
    naive.policy = Policy::kNaive;
    const Meaning reference = MeaningOf(naive, seed, false);
    for (int workers : {0, 1, 2, 4, 8}) {
      for (bool traced : {false, true}) EXPECT_EQ(MeaningOf(Quiet(workers), seed, traced), reference) << workers;
      EngineOptions small = Quiet(workers);
      small.max_pending = 8;
      small.spin = 20us;
      EXPECT_EQ(MeaningOf(small, seed, false), reference) << workers;
      naive.workers = workers;
      EXPECT_EQ(MeaningOf(naive, seed, false), reference) << workers;
    }
  }
}

TEST(OneMeaningTest, NaiveRunsEachOpInsideItsPush) {
  EngineOptions o = Quiet(2);
  o.policy = Policy::kNaive;
  Engine eng(o);
  Var a = eng.NewVar("a");
  std::thread::id ran_on;
  eng.Push({.writes = {a}}, [&] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_EQ(a.version(), 1u);
}

TEST(OneMeaningTest, NaiveMayRaiseWhereTheOpWasPushed) {
  Engine eng(Quiet(2));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  eng.SetPolicy(Policy::kNaive, {.raise_at_push = true});
  EXPECT_EQ(eng.policy(), Policy::kNaive);
  EXPECT_THROW(Fail(eng, a), OpError);
  EXPECT_THROW(eng.Wait(a), OpError);  // and it poisons as usual
  eng.SetPolicy(Policy::kThreaded);
  Fail(eng, b);
  EXPECT_THROW(eng.Wait(b), OpError);
}

TEST(OneMeaningTest, PolicyMayChangeAtAnyTime) {
  Engine eng(Quiet(2));
  Var a = eng.NewVar("a");
  std::vector<int> seen;
  for (int i = 0; i < 300; ++i) {
    if (i % 10 == 0) eng.SetPolicy(i % 20 ? Policy::kNaive : Policy::kThreaded);
    eng.Push({.updates = {a}}, [&, i] { seen.push_back(i); });
  }
  eng.Wait(a);
  for (int i = 0; i < 300; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], i);
}

TEST(OneMeaningTest, CombinationThatCannotBeHonouredIsRefused) {
  Engine eng(Quiet(1));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.SetPolicy(Policy::kThreaded, {.raise_at_push = true}); }), "naive"));
  EngineOptions o = Quiet(1);
  o.policy_options.raise_at_push = true;  // the same at the start
  EXPECT_TRUE(Has(RefusalOf([&] { Engine refused(o); }), "naive"));
}

}  // namespace
}  // namespace engine::test
