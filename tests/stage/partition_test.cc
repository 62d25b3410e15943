// The cut of SmartStage: what may be staged, which cut is best, and what is said about it. No threads.
#include "partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "support/seed.h"

namespace engine::detail {
namespace {

using test::Random;
using test::Seed;
using test::SeedLine;

// Adds nodes by name; each makes one value of the same name.
class Builder {
 public:
  uint32_t Var(const char* name) {
    graph.vars.push_back(name);
    return static_cast<uint32_t>(graph.vars.size() - 1);
  }
  uint32_t Add(const char* name, std::vector<uint32_t> inputs, double seconds = 1e-3, uint64_t bytes = 100) {
    const auto index = static_cast<uint32_t>(graph.nodes.size());
    const auto value = static_cast<uint32_t>(graph.values.size());
    graph.values.push_back({.name = name, .bytes = bytes});
    graph.nodes.push_back({.name = name,
                           .inputs = std::move(inputs),
                           .outputs = {value},
                           .effects = {},
                           .after = {},
                           .seconds = seconds});
    return index;
  }
  StepGraph::Node& operator[](uint32_t node) { return graph.nodes[node]; }
  StepGraph graph;
};

std::string ReasonOf(const Cut& cut, uint32_t node) {
  for (const auto& rejected : cut.rejected) {
    if (rejected.node == node) return rejected.reason;
  }
  return "";
}

// The program of DeepRec's page: read, decode, hash, look up, concatenate.
struct Page : Builder {
  uint32_t table = Var("var");
  uint32_t read = Add("read", {}, 2e-3), decode = Add("decode", {0}), hash = Add("hash", {1}),
           lookup = Add("lookup", {2}), concat = Add("concat", {3}, 6e-3), target = Add("target", {4});
  Page() {
    (*this)[read].source = true;
    (*this)[lookup].effects = {{table, AccessMode::kRead}};
    (*this)[target].target = true;
  }
};

TEST(PartitionTest, ATableThatNobodyChangesIsLookedUpAhead) {
  Page page;
  const Cut cut = Partition(page.graph, {});
  EXPECT_EQ(cut.staged, (std::vector<uint32_t>{page.read, page.decode, page.hash, page.lookup}));
  EXPECT_EQ(cut.left_over, std::vector<uint32_t>{page.concat});  // 7 ms against 5 is better than 11 against 1
  EXPECT_EQ(ReasonOf(cut, page.target), "is a marked target");
  EXPECT_EQ(cut.boundary, std::vector<uint32_t>{3});
  EXPECT_DOUBLE_EQ(cut.step_seconds, 7e-3);
  EXPECT_DOUBLE_EQ(cut.serial_seconds, 12e-3);
}

TEST(PartitionTest, CopiesToADeviceGoWithWhatTheyCopyAndRunBesideBothSides) {
  Builder b;
  const uint32_t read = b.Add("read", {}, 1e-3), parse = b.Add("parse", {0}, 4e-3), copy = b.Add("copy", {1}, 3e-3),
                 train = b.Add("train", {2}, 5e-3), late = b.Add("late", {3}, 0), back = b.Add("back", {4}, 2e-3);
  b[read].source = true;
  b[copy].copy = b[back].copy = true;
  b[train].target = true;
  const Cut cut = Partition(b.graph, {});
  EXPECT_EQ(cut.staged, (std::vector<uint32_t>{read, parse, copy}));
  EXPECT_DOUBLE_EQ(cut.stage_seconds, 5e-3);
  EXPECT_DOUBLE_EQ(cut.copy_seconds, 3e-3);
  EXPECT_DOUBLE_EQ(cut.main_seconds, 7e-3);
  EXPECT_DOUBLE_EQ(cut.step_seconds, 7e-3);
  EXPECT_EQ(cut.boundary, std::vector<uint32_t>{2});
  EXPECT_EQ(ReasonOf(cut, back), "needs 'late', which is not staged");
  EXPECT_EQ(ReasonOf(cut, late), "needs 'train', which is not staged");
  EXPECT_EQ(Levels(b.graph, cut, 2), (std::vector<std::vector<uint32_t>>{{read}, {parse}}));
}

TEST(PartitionTest, ATableThatTheStepChangesIsNot) {
  Page page;
  const uint32_t sgd = page.Add("sgd", {4});
  page[sgd].effects = {{page.table, AccessMode::kUpdate}};
  page[sgd].target = true;
  const Cut cut = Partition(page.graph, {});
  EXPECT_EQ(cut.staged, (std::vector<uint32_t>{page.read, page.decode, page.hash}));
  EXPECT_EQ(ReasonOf(cut, page.lookup), "reads Var 'var', which 'sgd' changes");
  EXPECT_EQ(ReasonOf(cut, page.concat), "needs 'lookup', which is not staged");
}

TEST(PartitionTest, EachRuleHasItsReason) {
  const auto reason = [](const std::function<void(Page&)>& change) {
    Page page;
    change(page);
    return ReasonOf(Partition(page.graph, {}), page.hash);
  };
  EXPECT_EQ(reason([](Page&) {}), "");
  EXPECT_EQ(reason([](Page& p) { p[p.hash].collective = true; }),
            "is a collective: every process must run it in the same order");
  EXPECT_EQ(reason([](Page& p) { p[p.hash].target = true; }), "is a marked target");
  EXPECT_EQ(reason([](Page& p) { p[p.hash].inputs.clear(); }), "does not depend on the source");
  EXPECT_EQ(reason([](Page& p) { p[p.decode].target = true; }), "needs 'decode', which is not staged");
  EXPECT_EQ(reason([](Page& p) {
              p.graph.values.push_back({.name = "rate"});
              p[p.hash].inputs.push_back(static_cast<uint32_t>(p.graph.values.size() - 1));
            }),
            "reads 'rate', which each step is given");
  const auto with_print = [](Page& p, bool print_first) {
    // A node of the step that is tied to hash by order alone.
    StepGraph::Node print{.name = "print", .inputs = {}, .outputs = {}, .effects = {}, .after = {}};
    p.graph.nodes.insert(p.graph.nodes.begin() + p.hash, print);
    p.hash += 1;
    if (print_first) p[p.hash].after = {p.hash - 1};
  };
  EXPECT_EQ(reason([&](Page& p) { with_print(p, true); }), "comes after 'print', which is not staged");
  EXPECT_EQ(reason([&](Page& p) { with_print(p, false); }), "");
  // A random state shared with the rest, and a counter of its own.
  EXPECT_EQ(reason([](Page& p) {
              const uint32_t state = p.Var("random state");
              p[p.hash].effects = {{state, AccessMode::kUpdate}};
              p[p.target].effects = {{state, AccessMode::kUpdate}};
            }),
            "changes Var 'random state', which 'target' touches");
  EXPECT_EQ(reason([](Page& p) { p[p.hash].effects = {{p.Var("counter"), AccessMode::kUpdate}}; }), "");
}

TEST(PartitionTest, ConstantsMayFeedWhatIsStaged) {
  Builder b;
  const uint32_t buckets = b.Add("buckets", {}), read = b.Add("read", {}), hash = b.Add("hash", {0, 1}),
                 target = b.Add("target", {2});
  b[read].source = true;
  b[target].target = true;
  const Cut cut = Partition(b.graph, {});
  EXPECT_EQ(ReasonOf(cut, hash), "");
  EXPECT_EQ(ReasonOf(cut, buckets), "");
}

// It runs once a step: where a staged node needs it, its value is handed over to the rest.
TEST(PartitionTest, AConstantIsOnOneSide) {
  Builder b;
  const uint32_t size = b.Add("size", {}), buckets = b.Add("buckets", {size}), other = b.Add("other", {size}),
                 read = b.Add("read", {}, 1e-3), hash = b.Add("hash", {buckets, read}, 1e-3),
                 target = b.Add("target", {buckets, other, hash}, 2e-3);
  b[read].source = true;
  b[target].target = true;
  const Cut cut = Partition(b.graph, {});
  EXPECT_EQ(cut.staged, (std::vector<uint32_t>{size, buckets, read, hash}));
  EXPECT_EQ(cut.boundary, (std::vector<uint32_t>{size, buckets, hash}));
  EXPECT_EQ(ReasonOf(cut, other), "does not depend on the source");
}

TEST(PartitionTest, AConstantThatStaysKeepsWhatNeedsIt) {
  Builder b;
  const uint32_t gather = b.Add("gather", {}), read = b.Add("read", {}), hash = b.Add("hash", {gather, read});
  b[gather].collective = true;
  b[read].source = true;
  const Cut cut = Partition(b.graph, {}, Choice::kLargest);
  EXPECT_EQ(cut.staged, std::vector<uint32_t>{read});
  EXPECT_EQ(ReasonOf(cut, hash), "needs 'gather', which is not staged");
}

TEST(PartitionTest, OfEquallyFastCutsTheOneWithFewerBytesWins) {
  Builder b;
  b.Add("read", {}, 1e-3, 1000);
  b.Add("shrink", {0}, 0, 10);
  b.Add("grow", {1}, 0, 5000);
  b.Add("target", {2}, 5e-3);
  b[0].source = true;
  b[3].target = true;
  const Cut cut = Partition(b.graph, {});
  EXPECT_EQ(cut.staged, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(cut.bytes, 10u);
}

TEST(PartitionTest, WhatAHandOverCostsMayMakeTheEmptyCutTheBest) {
  Page page;
  const Cut cut = Partition(page.graph, {.seconds = 1, .seconds_per_byte = 0});
  EXPECT_TRUE(cut.staged.empty());
  EXPECT_EQ(cut.step_seconds, cut.serial_seconds);
  const std::string text = Explain(page.graph, cut);
  EXPECT_NE(text.find("nothing is staged: no cut is faster"), text.npos) << text;
  EXPECT_NE(text.find("left in the step decode"), text.npos) << text;
}

TEST(PartitionTest, AFetchedValueIsHandedOver) {
  Page page;
  page.graph.values[1].fetched = true;
  EXPECT_EQ(Partition(page.graph, {}).boundary, (std::vector<uint32_t>{1, 3}));
}

TEST(PartitionTest, ItExplainsItself) {
  Page page;
  EXPECT_EQ(Explain(page.graph, Partition(page.graph, {})),
            "staged read\nstaged decode\nstaged hash\nstaged lookup\n"
            "left in the step concat: the step is no slower with it\n"
            "not staged target: is a marked target\n"
            "handed over lookup: 100 bytes\n"
            "predicted 7 ms a step (stage 5 ms, rest 7 ms), without a stage 12 ms\n");
}

TEST(PartitionTest, WhatTheCallerDoesBetweenTwoStepsIsPartOfTheRest) {
  Builder b;
  b.Add("read", {}, 2e-3);
  b.Add("parse", {0}, 1e-3);
  b[0].source = true;
  EXPECT_EQ(Partition(b.graph, {}).staged, std::vector<uint32_t>{0});
  b.graph.caller_seconds = 4e-3;
  const Cut cut = Partition(b.graph, {});
  EXPECT_EQ(cut.staged, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(cut.step_seconds, 4e-3);
  EXPECT_EQ(cut.serial_seconds, 7e-3);
  EXPECT_NE(Explain(b.graph, cut).find("; the caller itself takes 4 ms of the rest\n"), std::string::npos);
}

TEST(PartitionTest, NumbersThatPointNowhereAreRefused) {
  Page page;
  page[page.hash].inputs = {99};
  EXPECT_THROW(Partition(page.graph, {}), std::invalid_argument);
  page[page.hash].inputs = {4};
  EXPECT_THROW(Partition(page.graph, {}), std::invalid_argument);
  page[page.hash].inputs = {1};
  page[page.hash].after = {page.hash};
  EXPECT_THROW(Partition(page.graph, {}), std::invalid_argument);
}

// --- against all sets there are, by the rules written down once more

StepGraph RandomGraph(Random& random, uint32_t size) {
  Builder b;
  b.Var("a"), b.Var("b"), b.Var("c");
  for (uint32_t n = 0; n < size; ++n) {
    std::vector<uint32_t> inputs;
    for (uint32_t m = 0; m < n; ++m) {
      if (random.OneIn(3)) inputs.push_back(m);
    }
    b.Add("n", inputs, static_cast<double>(random.Below(8)) * 1e-3, random.Below(50));
    b[n].source = n == 0 || random.OneIn(6);
    b[n].target = random.OneIn(8) || n + 1 == size;
    b[n].collective = random.OneIn(12);
    if (n > 0 && random.OneIn(5)) b[n].after = {static_cast<uint32_t>(random.Below(n))};
    while (random.OneIn(4)) {
      b[n].effects.push_back({static_cast<uint32_t>(random.Below(3)), static_cast<AccessMode>(random.Below(3))});
    }
    b.graph.values[n].fetched = random.OneIn(8);
  }
  return b.graph;
}

bool IsLegal(const StepGraph& g, const std::vector<bool>& staged) {
  std::vector<bool> fed(g.nodes.size()), constant(g.nodes.size());
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    const auto& node = g.nodes[n];
    fed[n] = node.source;
    constant[n] = !node.source && node.effects.empty() && node.after.empty();
    bool ready = true;
    for (uint32_t v : node.inputs) {  // value v is made by node v
      fed[n] = fed[n] || fed[v];
      constant[n] = constant[n] && constant[v];
      ready = ready && staged[v];
    }
    if (!staged[n]) continue;
    bool needed = fed[n];
    for (size_t m = n + 1; m < g.nodes.size() && constant[n]; ++m)
      needed = needed || (staged[m] && std::count(g.nodes[m].inputs.begin(), g.nodes[m].inputs.end(), n));
    if (!ready || !needed || node.target || node.collective) return false;
    for (uint32_t m : node.after) {
      if (!staged[m]) return false;
    }
  }
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    for (size_t m = 0; m < g.nodes.size(); ++m) {
      if (!staged[n] || staged[m]) continue;
      for (const auto& x : g.nodes[n].effects) {
        for (const auto& y : g.nodes[m].effects) {
          if (x.var == y.var && !(x.mode == AccessMode::kRead && y.mode == AccessMode::kRead)) return false;
        }
      }
    }
  }
  return true;
}

double StepOf(const StepGraph& g, const std::vector<bool>& staged, const HandOverCost& cost) {
  double stage = 0, rest = 0, bytes = 0;
  bool any = false;
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    (staged[n] ? stage : rest) += g.nodes[n].seconds;
    any = any || staged[n];
    bool crosses = staged[n] && g.values[n].fetched;
    for (size_t m = 0; m < g.nodes.size(); ++m) {
      const auto& inputs = g.nodes[m].inputs;
      crosses = crosses || (staged[n] && !staged[m] && std::count(inputs.begin(), inputs.end(), n));
    }
    if (crosses) bytes += static_cast<double>(g.values[n].bytes);
  }
  return any ? std::max(stage + cost.seconds + cost.seconds_per_byte * bytes, rest + cost.seconds) : rest;
}

TEST(PartitionTest, OnSmallGraphsNoLegalSetIsFaster) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed());
  for (int i = 0; i < 300; ++i) {
    const uint32_t size = 2 + static_cast<uint32_t>(random.Below(9));
    const StepGraph graph = RandomGraph(random, size);
    const HandOverCost cost{.seconds = random.OneIn(2) ? 5e-4 : 0, .seconds_per_byte = random.OneIn(2) ? 2e-5 : 0};
    const Cut cut = Partition(graph, cost);
    std::vector<bool> mine(size, false);
    for (uint32_t n : cut.staged) mine[n] = true;
    EXPECT_TRUE(IsLegal(graph, mine));
    EXPECT_NEAR(cut.step_seconds, StepOf(graph, mine, cost), 1e-12);
    double best = 1e9;
    for (uint32_t set = 0; set < 1u << size; ++set) {
      std::vector<bool> staged(size);
      for (uint32_t n = 0; n < size; ++n) staged[n] = set >> n & 1;
      if (IsLegal(graph, staged)) best = std::min(best, StepOf(graph, staged, cost));
    }
    EXPECT_NEAR(cut.step_seconds, best, 1e-12) << "graph " << i;
    EXPECT_EQ(cut.staged.size() + cut.rejected.size() + cut.left_over.size(), size);
  }
}

TEST(PartitionTest, OnLargeGraphsItIsLegalAndNeverSlowerThanNoStage) {
  SCOPED_TRACE(SeedLine());
  Random random(Seed());
  for (int i = 0; i < 50; ++i) {
    const StepGraph graph = RandomGraph(random, 40);
    const HandOverCost cost{.seconds = 1e-4, .seconds_per_byte = 1e-6};
    const Cut cut = Partition(graph, cost);
    std::vector<bool> mine(40, false);
    for (uint32_t n : cut.staged) mine[n] = true;
    EXPECT_TRUE(IsLegal(graph, mine));
    EXPECT_LE(cut.step_seconds, cut.serial_seconds);
  }
}

}  // namespace
}  // namespace engine::detail
