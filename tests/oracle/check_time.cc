// Real time and overlap: an op that was pushed earlier comes earlier, and ops that conflict do not run at the same
// time.
#include <algorithm>
#include <cinttypes>

#include "verdict.h"

namespace engine::oracle {

// When an op began, and ended, to use a Var. An op on a device that was skipped, or failed before it launched anything,
// used nothing: its place is in the host's order, which may be ahead of the device.
uint64_t Verdict::BeginOf(const OpRecord& op, uint32_t var) {
  if (op.nodes.empty()) return op.runs ? op.run_begin : op.on_device ? kNever : op.skip_tick;
  uint64_t begin = kNever;
  for (const NodeRecord& node : op.nodes)
    for (const Use& use : node.uses)
      if (use.var == var && node.runs) begin = std::min(begin, node.run_begin);
  return begin;
}
uint64_t Verdict::EndOf(const OpRecord& op, uint32_t var) {
  if (op.nodes.empty()) return op.runs ? op.run_end : op.on_device ? 0 : op.skip_tick;
  uint64_t end = 0;
  if (var == op.out_var) {  // it is there as soon as its node has ended, whatever the others do
    const NodeRecord& maker = op.nodes[op.out_node];
    return maker.runs ? maker.run_end : 0;
  }
  for (const NodeRecord& node : op.nodes)
    for (const Use& use : node.uses)
      if ((use.var == var || var == op.run_var) && node.runs) end = std::max(end, node.run_end);
  return end;
}
bool Verdict::EndedBy(const OpRecord& op, uint64_t tick) {
  if (op.nodes.empty()) return (op.runs ? op.run_end : op.skip_tick) < tick;
  return std::all_of(op.nodes.begin(), op.nodes.end(),
                     [&](const NodeRecord& node) { return !node.runs || node.run_end < tick; });
}

void Verdict::RealTimeAndOverlap() {
  const auto earlier = [](const OpRecord* a, const OpRecord* b) { return !a || b->push_end < a->push_end ? b : a; };
  const auto pushed_before = [&](size_t var, const OpRecord* later, const OpRecord* op) {
    if (later && later->push_end < op->push_begin)
      log_.Complain("v%zu: o%u was pushed before o%u, and comes after it", var, later->id, op->id);
  };
  const auto ends_before = [&](uint32_t var, const OpRecord* op, uint64_t begin, const char* what) {
    const uint64_t end = EndOf(*op, var);
    if (end != kNever && end > begin)
      log_.Complain("v%u: o%u (ends at %" PRIu64 ") overlaps %s (begins at %" PRIu64 ")", var, op->id, end, what,
                    begin);
  };
  // From the last version to the first; remembers, of the ops behind a version, the first end of a push and the first
  // begin.
  for (uint32_t v = 0; v < vars_.size(); ++v) {
    const VarHistory& var = vars_[v];
    const OpRecord *first_write = nullptr, *first_any = nullptr;
    uint64_t begin_write = kNever, begin_any = kNever;
    for (size_t k = var.writers.size() + 1; k-- > 0;) {
      for (const OpRecord* reader : var.readers[k]) {
        pushed_before(v, first_write, reader);
        ends_before(v, reader, begin_write, "a later write");
      }
      for (const OpRecord* reader : var.readers[k]) {
        first_any = earlier(first_any, reader);
        begin_any = std::min(begin_any, BeginOf(*reader, v));
      }
      if (k == 0) break;
      const OpRecord* const writer = var.writers[k - 1];
      pushed_before(v, first_any, writer);
      ends_before(v, writer, begin_any, "a later op");
      first_any = earlier(first_any, writer);
      first_write = earlier(first_write, writer);
      begin_any = std::min(begin_any, BeginOf(*writer, v));
      begin_write = std::min(begin_write, BeginOf(*writer, v));
    }
  }
}

}  // namespace engine::oracle
