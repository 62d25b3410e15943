// Plans beside eager ops on the same Vars. Each plan has an observer node, which always runs and reads every Var of the
// plan, so that the versions of a run are known.
#include <algorithm>
#include <map>

#include "faults.h"
#include "put.h"

namespace engine::oracle {

void World::MakePlans(Random& random) {
  const uint64_t n = 1 + random.Below(3);
  for (uint32_t p = 0; p < n; ++p) plans_.push_back(MakePlan(random, p));
}

std::unique_ptr<World::PlanInfo> World::MakePlan(Random& random, uint32_t number) {
  auto info = std::make_unique<PlanInfo>();
  const uint64_t n = 2 + random.Below(6);
  for (uint64_t i = 0; i < n; ++i) {
    NodeRecord node;
    node.always = Has(kFail) && random.OneIn(8);
    const uint64_t uses = 1 + random.Below(3);
    for (uint64_t j = 0; j < uses; ++j) {
      const auto var = static_cast<uint32_t>(random.Below(static_cast<uint64_t>(s_.vars)));
      if (std::none_of(node.uses.begin(), node.uses.end(), [&](const Use& u) { return u.var == var; }))
        node.uses.push_back({var, static_cast<AccessMode>(random.Below(3)), 0});
    }
    std::stable_sort(node.uses.begin(), node.uses.end(), [](const Use& a, const Use& b) { return a.mode < b.mode; });
    for (uint32_t j = 0; j < node.uses.size(); ++j) node.uses[j].listed = j;
    info->nodes.push_back(node);
  }
  // To the engine the run is one op: if its nodes read and write a Var, it updates that Var.
  std::map<uint32_t, AccessMode> all;
  for (const NodeRecord& node : info->nodes) {
    for (const Use& use : node.uses) {
      const auto [it, fresh] = all.emplace(use.var, use.mode);
      if (!fresh && (use.mode != AccessMode::kRead || it->second == AccessMode::kWrite))
        it->second = AccessMode::kUpdate;
    }
  }
  NodeRecord observer;
  observer.always = true;
  for (const auto& [var, mode] : all) {
    observer.uses.push_back({var, AccessMode::kRead, static_cast<uint32_t>(observer.uses.size())});
    info->uses.push_back({var, mode, static_cast<uint32_t>(info->uses.size())});
  }
  info->observer = random.OneIn(2) ? 0 : info->nodes.size();
  info->nodes.insert(info->nodes.begin() + static_cast<ptrdiff_t>(info->observer), observer);
  if (Has(kRunOutputs)) info->maker = random.Below(info->nodes.size());

  Graph graph;
  const ValueId in = graph.Input<OpRecord*>("run");
  for (uint32_t i = 0; i < info->nodes.size(); ++i) AddNode(graph, in, *info, number, i, random);
  info->plan = graph.Compile(*eng_, {.name = "plan"});
  return info;
}

void World::AddNode(Graph& graph, ValueId in, const PlanInfo& info, uint32_t plan, uint32_t number, Random& random) {
  const NodeRecord& node = info.nodes[number];
  const bool makes = number == info.maker;
  std::vector<Var> by_mode[3];
  for (const Use& use : node.uses) by_mode[static_cast<size_t>(use.mode)].push_back(vars_[use.var]);
  NodeDesc desc{.name = Name::Intern("p" + std::to_string(plan) + "n" + std::to_string(number)),
                .inputs = {in},
                .outputs = makes,
                .reads = by_mode[0],
                .updates = by_mode[1],
                .writes = by_mode[2],
                .run_always = node.always};
  if (Has(kPlaces) && random.OneIn(8)) desc.place = random.OneIn(2) ? Io() : eng_->Pool("p");
  NodeId id;
  if (Has(kAsync) && s_.ending != Ending::kWithheld && random.OneIn(6)) {
    id = graph.AddAsync(desc, [this, number, makes](NodeContext& ctx, Completion done) {
      const GoodAllocations good;
      if (makes) ctx.Return(0, number);
      NodeRecord& now = ctx.In<OpRecord*>(0)->nodes[number];
      NodeBegin(now, ctx);
      LaterOrNow(complete_at_once_, [this, &now, done]() mutable {
        NodeEnd(now);
        const uint32_t root = now.root;
        if (now.failed) {
          done.Fail(PlannedFailure{root});
        } else {
          done();
        }
      });
    });
  } else {
    id = graph.Add(desc, [this, number, makes](NodeContext& ctx) {
      const GoodAllocations good;
      if (makes) ctx.Return(0, number);
      NodeRecord& now = ctx.In<OpRecord*>(0)->nodes[number];
      NodeBegin(now, ctx);
      NodeEnd(now);
      if (now.failed) throw PlannedFailure{now.root};
    });
  }
  if (makes) graph.Output(id[0]);
}

void World::NodeBegin(NodeRecord& node, NodeContext& ctx) {
  ++node.runs;
  node.run_begin = Tick();
  noise_.Point(node.root, 1);
  for (Use& use : node.uses) {
    use.version = ctx.version(vars_[use.var]);
    if (use.mode != AccessMode::kWrite) use.value = cells_[use.var].value;
  }
}

void World::NodeEnd(NodeRecord& node) {
  noise_.Point(node.root, 2);
  if (node.failure != Failure::kBeforeWriting) {
    node.wrote = true;
    for (const Use& use : node.uses)
      if (use.mode != AccessMode::kRead) cells_[use.var].value = WrittenValue(use.mode, use.value, use.var, node.root);
  }
  node.failed = node.failure != Failure::kNone;
  node.run_end = Tick();
}

void World::StartPlan(Pusher& me, Random& random, bool inside) {
  constexpr uint32_t kMostNodes = 16;
  const PlanInfo& info = *plans_[random.Below(plans_.size())];
  OpRecord& op = me.ops.emplace_back();
  op.id = NextId(me);
  op.seed = random.Next();
  op.uses = info.uses;
  op.nodes = info.nodes;
  for (uint32_t i = 0; i < op.nodes.size(); ++i) {
    NodeRecord& node = op.nodes[i];
    node.root = kNodeRoots + op.id * kMostNodes + i;
    if (Has(kFail) && i != info.observer && random.OneIn(static_cast<uint64_t>(s_.fail_in)))
      node.failure = random.OneIn(2) ? Failure::kBeforeWriting : Failure::kAfterWriting;
  }
  RunOptions options;
  // The run's input has a Var of its own, which every node reads through it.
  std::vector<Var> own;
  if (Has(kRunInputs) && random.OneIn(2)) {
    const auto var = static_cast<uint32_t>(random.Below(static_cast<uint64_t>(s_.vars)));
    if (std::none_of(op.uses.begin(), op.uses.end(), [&](const Use& u) { return u.var == var; })) {
      const auto reads = [&](std::vector<Use>& uses) {
        for (Use& use : uses) ++use.listed;
        uses.insert(uses.begin(), {var, AccessMode::kRead, 0});
      };
      reads(op.uses);
      for (NodeRecord& node : op.nodes) reads(node.uses);
      own.push_back(vars_[var]);
      options.inputs = own;
    }
  }
  Var output;
  if (info.maker != SIZE_MAX && random.OneIn(2)) {
    if (const uint32_t var = next_var_.fetch_add(1, std::memory_order_relaxed); var < kMaxVars) {
      const GoodAllocations good;
      try {
        output = eng_->NewVar("output");
        op.out_var = var;
        op.out_node = static_cast<uint32_t>(info.maker);
        options.outputs = {&output, 1};
      } catch (const UsageError& error) {  // Shutdown has come; it will refuse the run, too
        if (shutdown_begin_ == kNever) log_.Complain("no Var could be made: %s", error.what());
      }
    }
  }
  if (Has(kPolicy) && random.OneIn(3)) options.policy = static_cast<Policy>(random.Below(4));
  // Without a stand-in, a run in order inside a body fails where it would have to wait; its nodes' errors say not which run's.
  if (inside && Has(kFewSpares | kNoThreads)) options.policy = Policy::kThreaded;
  options.cancel = &me.never;
  if (Has(kPlaces) && random.OneIn(4)) options.priority = static_cast<int>(random.Below(5)) - 2;
  Value in[1] = {Value(&op)};
  engine::Run run;
  const uint32_t run_var = Has(kRunVars) ? next_var_.fetch_add(1, std::memory_order_relaxed) : kMaxVars;
  if (run_var < kMaxVars) op.run_var = run_var;
  const bool may_wait = !random.OneIn(5);
  Attempt(me, op, [&] {
    run = may_wait ? info.plan.Start(in, options) : info.plan.TryStart(in, options);
    return static_cast<bool>(run);
  });
  if (run) KeepRun(me, random, {std::move(run), &op, output});
}

}  // namespace engine::oracle
