#include "oracle.h"

#include <algorithm>

namespace engine::test {

OpRecord* Oracle::NewRecord(std::vector<Use> uses) {
  auto record = std::make_unique<OpRecord>();
  record->uses = std::move(uses);
  std::lock_guard lock(mu_);
  record->id = records_.size() + 1;
  records_.push_back(std::move(record));
  return records_.back().get();
}

void Oracle::Run(OpRecord& op, bool fails) {
  ++op.runs;
  op.failed = fails;
  uint64_t inputs = 0;
  for (Use& use : op.uses) {
    if (use.mode == AccessMode::kWrite) continue;
    use.value = values_[use.var];
    inputs = MixHash(inputs, use.value);
  }
  if (fails) return;
  for (const Use& use : op.uses)
    if (use.mode != AccessMode::kRead) values_[use.var] = Written(op.id, inputs, use.var);
}

namespace {

std::string Text(const OpRecord& op, const Use& use) {
  static constexpr const char* kModes[] = {"reads", "updates", "writes"};
  return "op " + std::to_string(op.id) + ", which " + kModes[static_cast<int>(use.mode)] + " Var " +
         std::to_string(use.var) + " at version " + std::to_string(use.version);
}

}  // namespace

// Sorts the accesses of each Var into the order that their versions claim; readers of a version stand behind its writer.
std::string Oracle::ByVar(std::vector<std::vector<Step>>& steps) const {
  for (const auto& op : records_) {
    if (op->runs == 0) continue;
    if (op->runs > 1) return "op " + std::to_string(op->id) + " ran " + std::to_string(op->runs) + " times";
    for (const Use& use : op->uses) steps[use.var].push_back({op.get(), &use});
  }
  for (auto& s : steps) {
    uint64_t most = 0;
    for (const Step& step : s) most = std::max(most, step.use->version);
    // Counting sort by 2 * version + reads: linear.
    std::vector<size_t> start(2 * most + 3, 0);
    const auto key = [](const Step& x) { return 2 * x.use->version + (x.use->mode == AccessMode::kRead); };
    for (const Step& step : s) ++start[key(step) + 1];
    for (size_t i = 1; i < start.size(); ++i) start[i] += start[i - 1];
    std::vector<Step> sorted(s.size());
    for (const Step& step : s) sorted[start[key(step)]++] = step;
    s = std::move(sorted);
    for (size_t i = 1; i < s.size(); ++i)
      if (s[i].use->mode != AccessMode::kRead && key(s[i]) == key(s[i - 1]))
        return Text(*s[i].op, *s[i].use) + " made the same version as op " + std::to_string(s[i - 1].op->id);
  }
  return "";
}

std::string Oracle::Check() const {
  std::vector<std::vector<Step>> steps(values_.size());
  if (std::string error = ByVar(steps); !error.empty()) return error;

  // Real time, and the edges of the order graph: writer -> its readers -> next writer.
  std::vector<std::vector<uint32_t>> successors(records_.size() + 1);
  std::vector<uint32_t> missing(records_.size() + 1, 0);
  const auto edge = [&](const OpRecord* from, const OpRecord* to) {
    successors[from->id].push_back(static_cast<uint32_t>(to->id));
    ++missing[to->id];
  };
  for (const auto& s : steps) {
    const OpRecord* writer = nullptr;
    std::vector<const OpRecord*> readers;
    uint64_t writers_begin = 0, all_begin = 0;  // the latest begin of a push so far
    for (const Step& step : s) {
      const bool reads = step.use->mode == AccessMode::kRead;
      if (step.op->push_end < (reads ? writers_begin : all_begin))
        return Text(*step.op, *step.use) + " was pushed before one that the engine ordered before it";
      if (writer) edge(writer, step.op);
      if (reads) {
        readers.push_back(step.op);
      } else {
        for (const OpRecord* r : readers) edge(r, step.op);
        readers.clear();
        writer = step.op;
        writers_begin = std::max(writers_begin, step.op->push_begin);
      }
      all_begin = std::max(all_begin, step.op->push_begin);
    }
  }

  // Replay in a topological order.
  std::vector<uint64_t> values(values_.size());
  for (size_t v = 0; v < values.size(); ++v) values[v] = Initial(static_cast<uint32_t>(v));
  std::vector<uint32_t> ready;
  size_t to_run = 0, ran = 0;
  for (const auto& op : records_) {
    to_run += op->runs > 0;
    if (op->runs > 0 && missing[op->id] == 0) ready.push_back(static_cast<uint32_t>(op->id));
  }
  while (!ready.empty()) {
    const OpRecord& op = *records_[ready.back() - 1];
    ready.pop_back();
    ++ran;
    uint64_t inputs = 0;
    for (const Use& use : op.uses) {
      if (use.mode == AccessMode::kWrite) continue;
      if (use.value != values[use.var]) return Text(op, use) + " did not see what was written there";
      inputs = MixHash(inputs, use.value);
    }
    for (const Use& use : op.uses)
      if (use.mode != AccessMode::kRead && !op.failed) values[use.var] = Written(op.id, inputs, use.var);
    for (uint32_t next : successors[op.id])
      if (--missing[next] == 0) ready.push_back(next);
  }
  if (ran != to_run) return "the order has a cycle of " + std::to_string(to_run - ran) + " ops or less";
  for (size_t v = 0; v < values.size(); ++v)
    if (values[v] != values_[v]) return "Var " + std::to_string(v) + " ends with another value than the replay";
  return "";
}

}  // namespace engine::test
