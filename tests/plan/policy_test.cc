// Policies by name, their parameters, scopes, and what is refused.
#include <set>

#include "support/engine_test.h"

namespace engine::test {
namespace {

TEST(PolicyTest, AllAreListedWithTheirParameters) {
  std::vector<std::string> names;
  for (const PolicyInfo& p : Policies()) {
    EXPECT_FALSE(p.help.empty());
    EXPECT_EQ(PolicyByName(p.name), p.policy);
    EXPECT_EQ(PolicyName(p.policy), p.name);
    for (const PolicyParameter& q : p.parameters) EXPECT_FALSE(q.help.empty() || q.type.empty());
    names.push_back(p.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"threaded", "inline", "naive", "cost_model"}));
}

TEST(PolicyTest, TextIsParsedAndChecked) {
  EXPECT_EQ(MakePolicy("inline", {{"intra_op_threads", "3"}}).options.intra_op_threads, 3);
  EXPECT_TRUE(MakePolicy("naive", {{"raise_at_push", "true"}}).options.raise_at_push);
  EXPECT_TRUE(Has(RefusalOf([] { MakePolicy("anarchy"); }), "'threaded', 'inline', 'naive'"));
  EXPECT_TRUE(Has(RefusalOf([] { MakePolicy("inline", {{"intra_op_threads", "0"}}); }), "1 to 255 is allowed"));
  EXPECT_EQ(RefusalOf([] {
              MakePolicy("inline", {{"smart_stage", "true"}, {"intra_op_threads", "many"}});
            }),
            "policy 'inline': intra_op_threads is 'many'; an integer from 1 to 255 is allowed");
  EXPECT_EQ(RefusalOf([] {
              MakePolicy("naive", {{"smart_stage", "perhaps"}});
            }),
            "policy 'naive': smart_stage is 'perhaps'; true or false is allowed");
  EXPECT_TRUE(Has(RefusalOf([] { MakePolicy("inline", {{"threads", "2"}}); }), "intra_op_threads"));
  EXPECT_TRUE(Has(RefusalOf([] { MakePolicy("threaded", {{"raise_at_push", "true"}}); }), "'naive'"));
}

TEST(PolicyTest, OptionsOfAnotherPolicyAreRefused) {
  Engine eng(Quiet(1));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.SetPolicy(Policy::kNaive, {.intra_op_threads = 2}); }), "'inline'"));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.SetPolicy(Policy::kInline, {.intra_op_threads = -1}); }), "1 to 255"));
  EXPECT_TRUE(Has(RefusalOf([&] { eng.SetPolicy(static_cast<Policy>(77)); }), "77"));
  EXPECT_EQ(eng.policy(), Policy::kThreaded);  // unchanged
}

// Of the steps, which no policy but cost_model keeps, an engine says what a choice without them says.
TEST(PolicyTest, AnEngineGivesBackTheParametersThatItWasGiven) {
  Engine eng(Quiet(1));
  for (const char* text :
       {"threaded", "threaded:smart_stage=false", "inline:intra_op_threads=255", "naive",
        "naive:raise_at_push=true,smart_stage=false", "cost_model:start_step=3,stop_step=16777215"}) {
    eng.SetPolicy(ParsePolicy(text));
    EXPECT_EQ(PolicyText(eng.policy_choice()), text);
    eng.SetPolicy(eng.policy_choice());
    EXPECT_EQ(PolicyText(eng.policy_choice()), text);
  }
}

TEST(PolicyTest, EachRowOfTheTableIsAParameterThatSomePolicyTakes) {
  std::set<std::string> taken;
  for (const PolicyInfo& p : Policies())
    for (const PolicyParameter& q : p.parameters) taken.insert(q.name);
#define ENGINE_NAME_OF(type, name, ...) #name,
  EXPECT_EQ(taken, (std::set<std::string>{ENGINE_POLICY_PARAMETERS(ENGINE_NAME_OF)}));
#undef ENGINE_NAME_OF
}

TEST(PolicyTest, ScopesAreOfOneThreadAndOneEngineAndNest) {
  Engine eng(Quiet(1)), other(Quiet(1));
  {
    const PolicyScope outer = eng.EnterPolicy({Policy::kNaive});
    {
      const PolicyScope inner = eng.EnterPolicy({Policy::kInline, {.intra_op_threads = 2}});
      EXPECT_EQ(eng.policy(), Policy::kInline);
      EXPECT_EQ(eng.policy_choice().options.intra_op_threads, 2);
      EXPECT_EQ(other.policy(), Policy::kThreaded);
      std::thread([&] { EXPECT_EQ(eng.policy(), Policy::kThreaded); }).join();
    }
    EXPECT_EQ(eng.policy(), Policy::kNaive);
  }
  EXPECT_EQ(eng.policy(), Policy::kThreaded);
}

TEST(PolicyTest, InlineRunsAPushOnItsThreadOrLaterOnAWaiters) {
  Engine eng(Quiet(2));
  Var a = eng.NewVar("a"), b = eng.NewVar("b");
  const PolicyScope scope = eng.EnterPolicy({Policy::kInline});
  const auto me = std::this_thread::get_id();
  std::thread::id at_once, later, next;
  eng.Push({.writes = {b}}, [&] { at_once = std::this_thread::get_id(); });
  EXPECT_EQ(at_once, me);
  HeldOp held = HoldWrite(eng, a);
  eng.Push({.updates = {a}}, [&] { later = std::this_thread::get_id(); });
  EXPECT_EQ(later, std::thread::id());
  std::thread([&] { held.Release(); }).join();
  eng.Push({.updates = {b}}, [&] { next = std::this_thread::get_id(); });  // the next call runs what is left, too
  eng.Wait(a);
  EXPECT_EQ(later, me);
  EXPECT_EQ(next, me);
}

TEST(PolicyTest, InlineLimitsParallelFor) {
  Engine eng(Quiet(2));
  const PolicyScope scope = eng.EnterPolicy({Policy::kInline});
  size_t pieces = 0;
  std::set<std::thread::id> threads;
  eng.Push({}, [&](RunContext& ctx) {
    ctx.ParallelFor(1000, 1, [&](size_t, size_t) {
      ++pieces;
      threads.insert(std::this_thread::get_id());
    });
  });
  EXPECT_EQ(pieces, 1u);
  EXPECT_EQ(threads, std::set{std::this_thread::get_id()});
}

TEST(PolicyTest, OtherPlacementsKeepTheirThreads) {
  Engine eng(Quiet(2));
  Var a = eng.NewVar("a");
  const PolicyScope scope = eng.EnterPolicy({Policy::kInline});
  std::thread::id ran;
  eng.Push({.writes = {a}, .place = Io()}, [&] { ran = std::this_thread::get_id(); });
  eng.Wait(a);
  EXPECT_NE(ran, std::this_thread::get_id());
}

TEST(PolicyTextTest, IsReadBackAsItWasWritten) {
  for (const char* text : {"threaded", "naive:raise_at_push=true,smart_stage=false", "inline:intra_op_threads=255",
                           "cost_model:start_step=3,stop_step=5"})
    EXPECT_EQ(PolicyText(ParsePolicy(text)), text);
  EXPECT_EQ(PolicyText(ParsePolicy("inline:smart_stage=1,intra_op_threads=1")), "inline");  // as by default
  EXPECT_TRUE(Has(RefusalOf([] { ParsePolicy("inline:intra_op_threads"); }), "write NAME:PARAMETER=VALUE"));
  EXPECT_TRUE(Has(RefusalOf([] { ParsePolicy("naive:smart_stage=1,smart_stage=1"); }), "'smart_stage' twice"));
  EXPECT_TRUE(Has(RefusalOf([] { ParsePolicy(""); }), "'threaded'"));
}

}  // namespace
}  // namespace engine::test
