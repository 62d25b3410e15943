// Bulks whose members wait for ops outside: each starts as soon as what it depends on is over, in whichever order that
// comes; and finding out which goes where costs so many looks a member, not a bulk.
#include <numeric>

#include "support/engine_test.h"
#include "support/seed.h"

namespace engine::test {
namespace {

WITH_ALL_WORKERS(ChainSplitTest);

// Vars that an op outside holds: nobody gets at one of them before its op is let go.
struct HeldVars {
  HeldVars(Engine& eng, int n) {
    for (int i = 0; i < n; ++i) {
      var.push_back(eng.NewVar("held" + std::to_string(i)));
      hold.push_back(HoldWrite(eng, var.back()));
    }
  }
  void Release(size_t i) { hold[i].Release(); }
  void ReleaseAll() {
    for (HeldOp& h : hold) h.Release();
  }
  std::vector<Var> var;
  std::vector<HeldOp> hold;
};

std::vector<Var> NewVars(Engine& eng, int n) {
  std::vector<Var> vars;
  for (int i = 0; i < n; ++i) vars.push_back(eng.NewVar());
  return vars;
}

std::vector<size_t> Shuffled(size_t n) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  Random random(Seed());
  for (size_t left = n; left > 1; --left) std::swap(order[left - 1], order[random.Below(left)]);
  return order;
}

TEST_P(ChainSplitTest, EachMemberWaitsForItsOwnOpOnly) {
  SCOPED_TRACE(SeedLine());
  constexpr size_t kMembers = 100;
  Engine eng(Quiet(workers()));
  HeldVars in(eng, kMembers);
  const std::vector<Var> out = NewVars(eng, kMembers);
  Var free = eng.NewVar("free");
  std::atomic<int> ran{0};
  HeldOps held(eng);
  for (size_t i = 0; i < kMembers; ++i) held.Push({.reads = {in.var[i]}, .writes = {out[i]}}, [&] { ++ran; });
  held.Push({.writes = {free}}, [] {});
  for (size_t i = 0; i < kMembers; ++i) held.Push({.updates = {out[i]}}, [&] { ++ran; });
  held.Release();
  eng.Wait(free);
  int expected = 0;
  for (const size_t i : Shuffled(kMembers)) {
    EXPECT_EQ(ran, expected);
    in.Release(i);
    eng.Wait(out[i]);
    EXPECT_EQ(ran, expected += 2) << "the member and what is behind it, and nobody else";
  }
}

// It stands in one part, but its turn comes there before the other is over.
TEST_P(ChainSplitTest, AMemberOfTwoPartsHoldsBackOnlyWhatDependsOnIt) {
  for (const size_t released_first : {size_t{0}, size_t{1}}) {
    Engine eng(Quiet(workers()));
    HeldVars in(eng, 2);
    Var a = eng.NewVar("a"), b = eng.NewVar("b"), after_a = eng.NewVar("after_a"), after_b = eng.NewVar("after_b");
    std::atomic<int> halves{0}, joined{0};
    HeldOps held(eng);
    held.Push({.reads = {in.var[0]}, .writes = {a}}, [&] { ++halves; });
    held.Push({.reads = {in.var[1]}, .writes = {b}}, [&] { ++halves; });
    held.Push({.reads = {a, b}, .writes = {in.var[0]}}, [&] { joined = halves.load(); });
    held.Push({.updates = {in.var[0]}}, [&] { EXPECT_EQ(joined, 2); });
    held.Push({.reads = {a}, .writes = {after_a}}, [] {});
    held.Push({.reads = {b}, .writes = {after_b}}, [] {});
    held.Release();
    in.Release(released_first);
    eng.Wait(released_first == 0 ? after_a : after_b);
    EXPECT_FALSE(Done(eng, released_first == 0 ? after_b : after_a));
    EXPECT_EQ(joined, 0);
    in.Release(1 - released_first);
    eng.WaitAll();
    EXPECT_EQ(joined, 2);
  }
}

TEST_P(ChainSplitTest, AWriteWaitsForReadersInSeveralParts) {
  Engine eng(Quiet(workers()));
  HeldVars in(eng, 3);
  Var a = eng.NewVar("a");
  std::atomic<int> read{0}, seen{-1};
  HeldOps held(eng);
  for (size_t i = 0; i < 3; ++i) held.Push({.reads = {in.var[i], a}}, [&] { ++read; });
  held.Push({.writes = {a}}, [&] { seen = read.load(); });
  held.Release();
  for (const size_t i : {size_t{1}, size_t{0}, size_t{2}}) {
    EXPECT_EQ(seen, -1);
    in.Release(i);
  }
  eng.Wait(a);
  EXPECT_EQ(seen, 3);
}

// What is behind a member is blocked in its turn, again and again, more often than a chain is looked at; and each time
// there is one behind it that is not.
TEST_P(ChainSplitTest, PartsAreSplitAgain) {
  constexpr size_t kDepth = 40;
  Engine eng(Quiet(workers()));
  HeldVars in(eng, kDepth);
  const std::vector<Var> step = NewVars(eng, kDepth), beside = NewVars(eng, kDepth);
  std::atomic<size_t> steps{0};
  HeldOps held(eng);
  for (size_t i = 0; i <= kDepth; ++i) {
    std::vector<Var> reads;
    if (i > 0) reads.push_back(step[i - 1]);
    if (i < kDepth) {
      reads.push_back(in.var[i]);
      held.Push({.reads = reads, .writes = {step[i]}}, [&, i] { EXPECT_EQ(steps++, i); });
    }
    if (i > 0) held.Push({.reads = {step[i - 1]}, .writes = {beside[i - 1]}}, [] {});
  }
  held.Release();
  for (size_t i = 0; i < kDepth; ++i) {
    in.Release(i);
    eng.Wait(beside[i]);
    EXPECT_EQ(steps, i + 1);
    if (i + 1 < kDepth) {
      EXPECT_FALSE(Done(eng, beside[i + 1]));
    }
  }
}

// All that a leaving member had behind it waits for it, or for an op outside.
TEST_P(ChainSplitTest, WhatWaitsOutsideGoesOnWhileAMemberWaits) {
  if (workers() < 2) GTEST_SKIP() << "nobody would run the later ones while a caller's thread waits inside an op";
  Engine eng(Quiet(workers()));
  HeldVars in(eng, 40);
  const std::vector<Var> out = NewVars(eng, 40);
  Var a = eng.NewVar("a"), last = eng.NewVar("last");
  Gate pushed;
  std::atomic<bool> over{false};
  HeldOps held(eng);
  held.Push({.updates = {a}}, [&] {
    pushed.Wait();
    eng.Wait(last);
    over = true;
  });
  for (size_t i = 0; i < 40; ++i) held.Push({.reads = {in.var[i]}, .writes = {out[i]}}, [] {});
  held.Push({.reads = out, .writes = {last}}, [&] { EXPECT_FALSE(over); });
  held.Push({.updates = {a}}, [&] { EXPECT_TRUE(over); });
  held.Release();
  pushed.Open();
  in.ReleaseAll();
  eng.Wait(a);
  EXPECT_EQ(a.version(), 2u);
}

TEST_P(ChainSplitTest, OpsOutsideMayEndOnOtherThreadsMeanwhile) {
  SCOPED_TRACE(SeedLine());
  constexpr size_t kMembers = 64;
  for (int round = 0; round < (kSanitized ? 10 : 40); ++round) {
    Engine eng(Quiet(workers()));
    HeldVars in(eng, kMembers);
    const std::vector<Var> out = NewVars(eng, kMembers / 4);
    std::vector<int> ran(out.size());
    HeldOps held(eng);
    for (size_t i = 0; i < kMembers; ++i) {
      int& count = ran[i % out.size()];
      held.Push({.reads = {in.var[i]}, .updates = {out[i % out.size()]}}, [&count, i] {
        EXPECT_EQ(static_cast<size_t>(count), i / 16);
        ++count;
      });
    }
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 2; ++t)
      threads.emplace_back([&, t] {
        for (const size_t i : Shuffled(kMembers))
          if (i % 2 == t) in.Release(i);
      });
    held.Release();
    for (auto& t : threads) t.join();
    eng.WaitAll();
    for (const int n : ran) EXPECT_EQ(n, 4);
  }
}

// --- dispatches

TEST(ChainSplitDispatches, APartIsOne) {
  Engine eng(Quiet(1));
  HeldVars in(eng, 8);
  const std::vector<Var> out = NewVars(eng, 8);
  Var free = eng.NewVar("free");
  HeldOps held(eng);
  for (size_t k = 0; k < 5; ++k) {
    for (size_t i = 0; i < 8; ++i) held.Push({.reads = {in.var[i]}, .updates = {out[i]}}, [] {});
    held.Push({.updates = {free}}, [] {});
  }
  held.Release();
  eng.Wait(free);
  in.ReleaseAll();
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 1 + 2 * 8u) << "those that nothing blocks; each write outside, and its part";
}

// Members with the same Vars form one part, although none of them waits for another; those of more Vars do, too.
TEST(ChainSplitDispatches, ReadersOfTheSameVarsAreOne) {
  Engine eng(Quiet(1));
  HeldVars in(eng, 3);
  HeldOps held(eng);
  for (size_t k = 0; k < 5; ++k)
    for (size_t i = 1; i < 3; ++i) held.Push({.reads = {in.var[0], in.var[i]}}, [] {});
  held.Release();
  in.ReleaseAll();
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 3u + 2u);
}

TEST(ChainSplitDispatches, AWriteStaysWithTheReadersBeforeIt) {
  Engine eng(Quiet(1));
  HeldVars in(eng, 2);
  Var a = eng.NewVar("a");
  HeldOps held(eng);
  held.Push({.reads = {in.var[0], a}}, [] {});
  held.Push({.reads = {in.var[1]}}, [] {});
  held.Push({.writes = {a}}, [] {});
  held.Release();
  in.ReleaseAll();
  eng.WaitAll();
  EXPECT_EQ(eng.stats().dispatches, 2u + 2u);
}

// --- looks

// How often members of a bulk of `n` were looked at, from its release until all of it has run: `push` appends the i-th,
// which reads `in`; the ops outside are let go in order, each when all that could run before has run, on this thread.
template <class F>
uint64_t LooksAt(size_t n, F&& push) {
  EngineOptions options = Quiet(0);
  options.max_pending = 4 * n;
  Engine eng(options);
  HeldVars in(eng, static_cast<int>(n));
  const std::vector<Var> own = NewVars(eng, static_cast<int>(n));
  HeldOps held(eng);
  for (size_t i = 0; i < n; ++i) push(held, in.var[i], own, i);
  held.Release();
  for (size_t i = 0; i < n; ++i) {
    in.Release(i);
    Done(eng, own[i]);
    EXPECT_EQ(eng.stats().completed, 2 * (i + 1));
  }
  return eng.stats().split_looks;
}

TEST(ChainSplitLooks, NoneWhereNobodyIsBlocked) {
  Engine eng(Quiet(1));
  const std::vector<Var> own = NewVars(eng, 100);
  HeldOps held(eng);
  for (size_t i = 0; i < 100; ++i) held.Push({.updates = {own[i]}}, [] {});
  held.Release();
  eng.WaitAll();
  EXPECT_EQ(eng.stats().split_looks, 0u);
}

TEST(ChainSplitLooks, TwoAMemberWhereEachIsBlockedByAnotherOp) {
  const auto push = [](HeldOps& held, const Var& in, const std::vector<Var>& own, size_t i) {
    held.Push({.reads = {in}, .writes = {own[i]}}, [] {});
  };
  for (const size_t n : {size_t{10}, size_t{100}, size_t{1000}}) EXPECT_LE(LooksAt(n, push), 2 * n) << n;
}

TEST(ChainSplitLooks, OneAMemberWhereEachIsBehindTheOneBefore) {
  const auto push = [](HeldOps& held, const Var& in, const std::vector<Var>& own, size_t i) {
    const std::vector<Var> updates = i ? std::vector<Var>{own[i], own[i - 1]} : std::vector<Var>{own[i]};
    held.Push({.reads = {in}, .updates = updates}, [] {});
  };
  // That a writer of what the one before it wrote is behind it, is seen at once; also in a part.
  for (const size_t n : {size_t{10}, size_t{100}, size_t{1000}}) EXPECT_LE(LooksAt(n, push), n) << n;
}

// The worst: each waits for the one before it by a read, and is blocked by an op of its own when its turn comes.
TEST(ChainSplitLooks, AreBoundedWhereEveryTurnFindsAMemberBlocked) {
  const auto push = [](HeldOps& held, const Var& in, const std::vector<Var>& own, size_t i) {
    const std::vector<Var> reads = i ? std::vector<Var>{in, own[i - 1]} : std::vector<Var>{in};
    held.Push({.reads = reads, .writes = {own[i]}}, [] {});
  };
  for (const size_t n : {size_t{100}, size_t{1000}}) EXPECT_LE(LooksAt(n, push), 18 * n) << n;
}

}  // namespace
}  // namespace engine::test
