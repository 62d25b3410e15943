// Contract 2: Vars named several times, empty sets, and handles that must be refused.
#include <array>
#include <list>
#include <ranges>
#include <span>

#include "engine/data.h"
#include "support/engine_test.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(SetsTest);

TEST_P(SetsTest, VarNamedSeveralTimesCountsOnce) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  eng.Push({.reads = {a, a, b, a}}, [] {});
  eng.Push({.writes = {a, b, a}}, [] {});
  eng.Push({.updates = {b, b}}, [] {});
  eng.WaitAll();
  EXPECT_EQ(a.version(), 1u);
  EXPECT_EQ(b.version(), 2u);
}

TEST_P(SetsTest, ReadTogetherWithWriteIsUpdate) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Fail(eng, a);
  bool ran = false;
  eng.Push({.reads = {a}, .writes = {a}}, [&] { ran = true; });  // sees the value, so it is skipped
  EXPECT_THROW(eng.Wait(a), OpError);
  EXPECT_FALSE(ran);
  eng.Push({.writes = {a, a}}, [&] { ran = true; });  // twice Write stays a Write
  eng.Wait(a);
  EXPECT_TRUE(ran);
}

TEST_P(SetsTest, UpdateTogetherWithWriteIsUpdate) {
  Engine eng(Quiet(workers()));
  Var a = eng.NewVar("a");
  Fail(eng, a);
  eng.Push({.updates = {a}, .writes = {a}}, [] { FAIL() << "must be skipped"; });
  EXPECT_THROW(eng.Wait(a), OpError);
  EXPECT_EQ(a.version(), 2u);
}

TEST_P(SetsTest, BodyFindsTheVarsOfItsOpWithTheirModesAndTags) {
  Engine eng(Quiet(workers()));
  int objects[3];
  Var a = eng.NewVar("a", &objects[0]), b = eng.NewVar("b", &objects[1]), c = eng.NewVar("c", &objects[2]);
  EXPECT_EQ(eng.NewVar().tag(), nullptr);
  EXPECT_EQ(VarRef(nullptr).tag(), nullptr);
  std::vector<NamedVar> named;
  eng.Push({.reads = {c, a}, .updates = {b, a}, .writes = {}}, [&](RunContext& ctx) { named = ctx.vars(); });
  eng.Wait(b);
  ASSERT_EQ(named.size(), 3u);
  const std::pair<int*, AccessMode> expected[] = {
      {&objects[2], AccessMode::kRead}, {&objects[0], AccessMode::kUpdate}, {&objects[1], AccessMode::kUpdate}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(named[i].var.tag(), expected[i].first);
    EXPECT_EQ(named[i].mode, expected[i].second);
  }
  eng.Push({}, [&](RunContext& ctx) { named = ctx.vars(); });
  eng.WaitAll();
  EXPECT_TRUE(named.empty());
}

TEST_P(SetsTest, EmptySetsAreLegal) {
  Engine eng(Quiet(workers()));
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) eng.Push({}, [&] { ++ran; });
  eng.WaitAll();
  EXPECT_EQ(ran, 100);
}

TEST_P(SetsTest, HundredsOfVarsInOneOp) {
  Engine eng(Quiet(workers()));
  std::vector<Var> reads, writes;
  for (int i = 0; i < 700; ++i) {
    reads.push_back(eng.NewVar());
    writes.push_back(eng.NewVar());
  }
  for (int round = 0; round < 3; ++round) {
    eng.Push({.reads = reads, .writes = writes}, [] {});
    eng.Push({.reads = writes, .writes = reads}, [] {});
  }
  eng.WaitAll();
  for (const Var& v : writes) ASSERT_EQ(v.version(), 3u);
  for (const Var& v : reads) ASSERT_EQ(v.version(), 3u);
}

TEST_P(SetsTest, AnyRangeOfVarsIsASet) {
  Engine eng(Quiet(workers()));
  struct Layer {
    Var weights;
    bool frozen;
  };
  std::vector<Var> vars;
  for (int i = 0; i < 4; ++i) vars.push_back(eng.NewVar());
  const std::vector<VarRef> refs(vars.begin(), vars.end());
  const std::array<Var, 4> array{vars[0], vars[1], vars[2], vars[3]};
  const Var raw[] = {vars[0], vars[1], vars[2], vars[3]};
  const std::initializer_list<Var> listed = {vars[0], vars[1], vars[2], vars[3]};
  std::list<Var> linked(vars.begin(), vars.end());
  std::vector<Data<int>> data;
  std::vector<Layer> layers;
  for (const Var& v : vars) layers.push_back({v, false});
  uint64_t pushes = 0;
  const auto write_all = [&](const auto& set) {
    eng.Push({.writes = set}, [] {});
    ++pushes;
  };
  write_all(vars);
  write_all(refs);
  write_all(array);
  write_all(raw);
  write_all(listed);
  write_all(linked);
  write_all(std::span(vars));
  write_all(std::span(refs));
  write_all(std::views::all(vars));
  write_all(std::views::transform(layers, &Layer::weights));
  std::erase_if(layers, [](const Layer& l) { return l.frozen; });
  eng.Push({.writes = layers | std::views::filter([](const Layer& l) { return !l.frozen; }) |
                      std::views::transform(&Layer::weights)},
           [] {});
  ++pushes;
  for (int i = 0; i < 4; ++i) data.emplace_back(eng, "data", i);
  eng.Push({.reads = data, .writes = vars}, [] {});
  ++pushes;
  eng.Push({.reads = std::vector<Var>(), .updates = std::views::empty<Var>, .writes = {}}, [] {});
  eng.WaitAll();
  for (const Var& v : vars) EXPECT_EQ(v.version(), pushes);
}

TEST(SetsRangeTest, VarsSideBySideAreNotCopied) {
  Engine eng(Quiet(1));
  std::vector<Var> vars{eng.NewVar(), eng.NewVar()};
  const std::vector<VarRef> refs(vars.begin(), vars.end());
  EXPECT_EQ(VarSet(vars).begin(), &vars[0]);
  EXPECT_EQ(VarSet(refs).begin(), &refs[0]);
  EXPECT_EQ(VarSet(vars[1]).begin(), &vars[1]);
  VarSet set(refs);
  const VarSet copy(set);
  EXPECT_EQ(copy.begin(), &refs[0]);
  EXPECT_EQ(copy.size(), 2u);
}

TEST(SetsRangeTest, AVarRefOfALivingVarMakesOneMoreHandle) {
  Engine eng(Quiet(1));
  Var kept;
  {
    Var var = eng.NewVar("var");
    const VarRef ref = var;
    kept = Var(ref);
    EXPECT_TRUE(kept == var);
  }
  eng.Push({.writes = {kept}}, [] {});
  eng.Wait(kept);
  EXPECT_EQ(kept.version(), 1u);
  EXPECT_FALSE(Var(VarRef(Var())));
}

TEST(SetsRefusalTest, MoreVarsThanAnOpMayNameAreRefused) {
  Engine eng(Quiet(1));
  Var a = eng.NewVar("a");
  const std::vector<Var> many(20000, a);
  const std::string text = RefusalOf([&] { eng.Push({.name = "huge", .reads = many}, [] {}); });
  EXPECT_TRUE(Has(text, "huge"));
  EXPECT_TRUE(Has(text, "20000"));
  eng.Push({.writes = {a}}, [] {});
  eng.Wait(a);
}

TEST(SetsRefusalTest, NullVarIsRefusedWithTheOpAndItsPlace) {
  Engine eng(Quiet(1));
  const std::string text = RefusalOf([&] { eng.Push({.name = "scale", .reads = {Var()}}, [] {}); });
  EXPECT_TRUE(Has(text, "null Var"));
  EXPECT_TRUE(Has(text, "reads"));
  EXPECT_TRUE(Has(text, "'scale'"));
  EXPECT_TRUE(Has(text, "sets_test.cc:"));
}

TEST(SetsRefusalTest, ForeignVarIsRefusedByName) {
  Engine eng(Quiet(1)), other(Quiet(1));
  Var theirs = other.NewVar("theirs"), mine = eng.NewVar("mine");
  const std::string text = RefusalOf([&] { eng.Push({.name = "mix", .reads = {mine}, .updates = {theirs}}, [] {}); });
  EXPECT_TRUE(Has(text, "'theirs'"));
  EXPECT_TRUE(Has(text, "another engine"));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Wait(theirs); }), "another engine"));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.ClearError(theirs); }), "another engine"));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.Delete(theirs); }), "another engine"));
  EXPECT_EQ(mine.version(), 0u);
}

TEST(SetsRefusalTest, DeletedVarIsRefusedByName) {
  Engine eng(Quiet(1));
  Var a = eng.NewVar("gone"), b = eng.NewVar("b");
  Var stale = a;
  eng.Delete(a);
  EXPECT_FALSE(a);
  const std::string text = RefusalOf([&] { eng.Push({.name = "late", .reads = {b}, .writes = {stale}}, [] {}); });
  EXPECT_TRUE(Has(text, "'gone'"));
  EXPECT_TRUE(Has(text, "'late'"));
  EXPECT_TRUE(Has(text, "deleted"));
  EXPECT_THROW(eng.Delete(stale), UsageError);
  EXPECT_THROW(eng.ClearError(stale), UsageError);
}

TEST(SetsRefusalTest, RefusedPushChangesNothing) {
  Engine eng(Quiet(1));
  Var a = eng.NewVar("a"), gone = eng.NewVar("gone"), stale = gone;
  eng.Delete(gone);
  auto alive = std::make_shared<int>(1);
  std::weak_ptr<int> closure = alive;
  const uint64_t pushed = eng.stats().pushed;
  for (int i = 0; i < 100; ++i) EXPECT_THROW(eng.Push({.reads = {a}, .writes = {stale}}, [alive] {}), UsageError);
  alive.reset();
  EXPECT_TRUE(closure.expired());
  EXPECT_EQ(eng.stats().pushed, pushed);
  eng.Push({.writes = {a}}, [] {});
  eng.WaitToWrite(a);
  eng.WaitAll();
  EXPECT_EQ(a.version(), 1u);
}

}  // namespace
}  // namespace engine::test
