// Values and errors: replays the ops one after the other, in the serial order that was found.
#include <algorithm>
#include <cinttypes>

#include "verdict.h"

namespace engine::oracle {
namespace {

// Which errors an op may have inherited: those of the first of its reads and updates, as the caller listed them, that
// has an error. If that Var may be clean, the next one counts too.
template <class Errors>
Errors Inherited(std::vector<std::pair<uint32_t, Errors>> inputs, int64_t clean) {
  std::sort(inputs.begin(), inputs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Errors all;
  for (const auto& [listed, errors] : inputs) {
    const bool may_be_clean = errors.count(clean);
    all.insert(errors.begin(), errors.end());
    if (!may_be_clean) break;
  }
  all.erase(clean);
  return all;
}

}  // namespace

// The errors of a version as somebody in [begin, end] finds them. ClearError takes a place in the order and makes no
// version, so only the time says where it stands.
Verdict::Errors Verdict::WithClears(uint32_t var, size_t version, uint64_t begin, uint64_t end) const {
  Errors errors = vars_[var].errors[version];
  if (errors == Errors{kClean}) return errors;
  const OpRecord* const writer = version ? vars_[var].writers[version - 1] : nullptr;
  for (const ClearRecord& clear : h_.clears[var]) {
    if (writer && clear.begin > writer->push_end && clear.end < begin) return {kClean};
    if (!(writer && clear.end < writer->push_begin) && clear.begin < end) errors.insert(kClean);
  }
  return errors;
}

Verdict::Cancelled Verdict::CancelOf(const OpRecord& op) const {
  if (op.may_be_refused && op.skips) return Cancelled::kMaybe;  // with an error of its own, as a cancelled op
  if (op.scope < 0 || op.always) return Cancelled::kNo;
  const Interval& cancel = h_.cancels[static_cast<size_t>(op.scope)];
  if (cancel.end < op.push_begin) return Cancelled::kSurely;
  return op.skips && cancel.begin < op.skip_tick ? Cancelled::kMaybe : Cancelled::kNo;
}

void Verdict::Replay() {
  for (uint32_t v = 0; v < vars_.size(); ++v) {
    VarHistory& var = vars_[v];
    var.errors.resize(var.writers.size() + 1);
    var.values.resize(var.writers.size() + 1);
    var.errors[0] = {kClean};
    var.values[0] = InitialValue(v);
  }
  for (const OpRecord* op : order_) {
    std::map<uint32_t, Now> now;
    for (const Use& use : op->uses) {
      const size_t seen = use.mode == AccessMode::kRead ? use.version : use.version - 1;
      now[use.var] = {WithClears(use.var, seen, op->push_begin, op->push_end), vars_[use.var].values[seen]};
    }
    if (op->nodes.empty()) {
      Step(*op, op->id, op->uses, op->always, op->runs, op->failed, op->wrote, CancelOf(*op), now);
    } else {
      Errors& errors = of_run_[op];
      for (uint32_t i = 0; i < op->nodes.size(); ++i) {
        const NodeRecord& n = op->nodes[i];
        const Errors passed = Step(*op, n.root, n.uses, n.always, n.runs, n.failed, n.wrote, Cancelled::kNo, now);
        errors.insert(passed.begin(), passed.end());
        if (op->out_var != OpRecord::kNoVar && i == op->out_node)
          now[op->out_var].errors = passed.empty() ? Errors{kClean} : passed;
      }
      if (op->run_var != OpRecord::kNoVar) now[op->run_var].errors = errors.empty() ? Errors{kClean} : errors;
    }
    for (const Use& use : op->uses) {
      if (use.mode == AccessMode::kRead) continue;
      vars_[use.var].errors[use.version] = now[use.var].errors;
      vars_[use.var].values[use.version] = now[use.var].value;
    }
  }
  for (size_t v = 0; v < vars_.size(); ++v)
    if (h_.values[v] != vars_[v].values.back()) log_.Complain("v%zu: ends with another value than the replay", v);
}

// What the op, or the node, passes on.
Verdict::Errors Verdict::Step(const OpRecord& op, uint32_t root, const std::vector<Use>& uses, bool always, bool ran,
                              bool failed, bool wrote, Cancelled cancelled, std::map<uint32_t, Now>& now) {
  std::vector<std::pair<uint32_t, Errors>> inputs;
  for (const Use& use : uses)
    if (use.mode != AccessMode::kWrite) inputs.push_back({use.listed, now[use.var].errors});
  Errors passed;
  if (ran) {
    if (cancelled == Cancelled::kSurely)
      log_.Complain("o%u: ran, although its scope was cancelled before its push", op.id);
    for (const auto& [listed, errors] : inputs)
      if (!always && !errors.count(kClean))
        log_.Complain("o%u (root %u): ran on a poisoned Var (error %" PRId64 ")", op.id, root, *errors.begin());
    if (failed) passed = {static_cast<int64_t>(root)};
  } else {
    if (always && cancelled == Cancelled::kNo)
      log_.Complain("o%u (root %u): is run_always, and was skipped", op.id, root);
    passed = Inherited(inputs, kClean);
    if (cancelled != Cancelled::kNo) passed.insert(static_cast<int64_t>(root));
    if (passed.empty()) log_.Complain("o%u (root %u): was skipped without a reason", op.id, root);
  }
  for (const Use& use : uses) {
    auto& [errors, value] = now[use.var];
    const bool looked = ran && op.failure != Failure::kWithheld && !(op.on_device && failed);
    if (looked && use.mode != AccessMode::kWrite && use.value != value)
      log_.Complain("o%u (root %u): saw another value of v%u than the replay", op.id, root, use.var);
    if (use.mode == AccessMode::kRead) continue;
    if (wrote) value = WrittenValue(use.mode, value, use.var, root);
    if (!passed.empty()) {
      errors = passed;
    } else if (use.mode == AccessMode::kWrite || !always) {
      errors = {kClean};
    }
  }
  return passed;
}

}  // namespace engine::oracle
