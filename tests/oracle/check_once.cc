// Once: each op ran or was skipped once; refused pushes changed nothing; counters add up.
#include <algorithm>
#include <cinttypes>

#include <utility>

#include "verdict.h"

namespace engine::oracle {

void Verdict::Check() {
  Once();
  Stats();
  if (!RunVersions() || !Versions() || !SerialOrder()) return;  // the other checks need an order
  RealTimeAndOverlap();
  Replay();
  Waits();
  Unseen();
}

void Verdict::OneOp(const OpRecord& op) {
  if (!op.nodes.empty()) {
    for (const NodeRecord& node : op.nodes)
      if (node.runs > 1 || (node.runs && !op.accepted()))
        log_.Complain("run o%u: a node ran %d times", op.id, node.runs);
  } else {
    if (op.closures_destroyed != 1)
      log_.Complain("o%u: its closure was destroyed %d times", op.id, op.closures_destroyed);
    if (op.changed_while_held) log_.Complain("o%u: a Var changed while it was held", op.id);
    if (op.accepted() && op.runs + op.skips != 1)
      log_.Complain("o%u: ran %d times, skipped %d times", op.id, op.runs, op.skips);
    if (!op.accepted() && op.runs) log_.Complain("o%u: was refused, and ran", op.id);
    if (op.on_device && op.runs && op.kernels != (op.failed ? 0 : 1))
      log_.Complain("o%u: its kernel ran %d times", op.id, op.kernels);
  }
  for (const Use& use : op.uses)
    if (op.accepted() && h_.deletions[use.var].end < op.push_begin)
      log_.Complain("o%u: names a Var that was deleted before, and was accepted", op.id);
  if (op.push != PushEnd::kRefused) return;
  const bool closed = h_.shutdown.begin < op.push_end;
  if (!closed && std::none_of(op.uses.begin(), op.uses.end(),
                              [&](const Use& use) { return h_.deletions[use.var].begin < op.push_end; }))
    log_.Complain("o%u: was refused, and names no deleted Var", op.id);
}

void Verdict::Once() {
  for (OpRecord* op : h_.ops) {
    ++totals_.ops;
    OneOp(*op);
    if (!op->accepted()) continue;
    if (h_.shutdown.end < op->push_begin && op->depth == 0 && !op->is_operator)
      log_.Complain("o%u: was accepted after Shutdown had returned", op->id);
    op->index = static_cast<uint32_t>(ops_.size());
    ops_.push_back(op);
    totals_.skipped += static_cast<uint64_t>(op->skips);
    if (op->failed) roots_.insert(op->id);
    if ((op->scope >= 0 || op->may_be_refused) && op->skips) may_show_.insert(op->id);
    for (const NodeRecord& node : op->nodes)
      if (node.failed) roots_.insert(node.root);
  }
  totals_.failed = roots_.size();
}

void Verdict::Stats() {
  if (h_.operator_runs != h_.operator_pushes)
    log_.Complain("%" PRIu64 " runs of operators for %" PRIu64 " pushes", h_.operator_runs, h_.operator_pushes);
  if (!h_.has_stats) return;
  if (h_.stats.pushed < ops_.size())  // inner ops, stages and collectives push too
    log_.Complain("stats: %" PRIu64 " pushed, %zu accepted", h_.stats.pushed, ops_.size());
  if (h_.stats.completed != h_.stats.pushed)
    log_.Complain("stats: %" PRIu64 " pushed, %" PRIu64 " completed", h_.stats.pushed, h_.stats.completed);
}

// A run's versions are those that its observer node saw; all its nodes must have seen the same. In the history its own
// Var has version 1 behind it, whatever its frame did before; all ops behind it must have seen one version.
bool Verdict::RunVersions() {
  for (OpRecord* op : ops_) {
    for (Use& use : op->uses) {
      if (!use.run) continue;
      const uint64_t seen = std::exchange(use.version, 1);
      if (seen == kNever) continue;  // the op kept no handle of the Var
      if (use.run->run_version == kNever) use.run->run_version = seen;
      if (use.run->run_version != seen)
        log_.Complain("o%u: sees version %" PRIu64 " of the Var of run o%u, and another op %" PRIu64, op->id, seen,
                      use.run->id, use.run->run_version);
    }
    if (op->nodes.empty()) continue;
    const auto observer = std::find_if(op->nodes.begin(), op->nodes.end(), [&](const NodeRecord& node) {
      return node.always && node.runs && node.uses.size() == op->uses.size() &&
             std::all_of(node.uses.begin(), node.uses.end(),
                         [](const Use& use) { return use.mode == AccessMode::kRead; });
    });
    if (observer == op->nodes.end()) {
      log_.Complain("run o%u: its observer did not run", op->id);
      return false;
    }
    std::map<uint32_t, uint64_t> versions;
    for (const Use& use : observer->uses) versions[use.var] = use.version;
    for (Use& use : op->uses) use.version = versions[use.var];
    for (const uint32_t own : {op->run_var, op->out_var})
      if (own != OpRecord::kNoVar) op->uses.push_back({own, AccessMode::kWrite, 0, 1});
    for (const NodeRecord& node : op->nodes)
      for (const Use& use : node.uses)
        if (node.runs && versions[use.var] != use.version)
          log_.Complain("run o%u: nodes see versions %" PRIu64 " and %" PRIu64 " of v%u", op->id, use.version,
                        versions[use.var], use.var);
  }
  return true;
}

}  // namespace engine::oracle
