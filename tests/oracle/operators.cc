// Operators that all threads push. They run always, so each push is one run; which push a run belongs to is not known.
#include <algorithm>

#include "faults.h"
#include "world.h"

namespace engine::oracle {

void World::MakeOperator(Random& random) {
  std::vector<Use> uses;
  std::vector<Var> by_mode[3], vars;
  for (int i = 0; i < 3; ++i) {
    const auto var = static_cast<uint32_t>(random.Below(static_cast<uint64_t>(s_.vars)));
    const auto mode = static_cast<AccessMode>(random.Below(3));
    if (std::any_of(uses.begin(), uses.end(), [&](const Use& u) { return u.var == var; })) continue;
    uses.push_back({var, mode, 0});
    by_mode[static_cast<size_t>(mode)].push_back(vars_[var]);
    vars.push_back(vars_[var]);
  }
  const OpDesc desc{
      .name = "operator", .reads = by_mode[0], .updates = by_mode[1], .writes = by_mode[2], .run_always = true};
  operators_.push_back(eng_->NewOperator(desc, [this, uses, vars](RunContext& ctx) { OperatorBody(uses, vars, ctx); }));
}

void World::OperatorBody(const std::vector<Use>& uses, const std::vector<Var>& vars, RunContext& ctx) {
  const GoodAllocations good;
  OpRecord* op;
  {
    std::lock_guard lock(operator_mu_);
    op = &operator_ops_.emplace_back();
  }
  const auto stride = static_cast<uint32_t>(s_.pushers) + 1;
  op->id = next_inner_.fetch_add(1, std::memory_order_relaxed) * stride + stride - 1;
  op->uses = uses;
  op->always = op->is_operator = true;
  op->push = PushEnd::kAccepted;
  op->closures_destroyed = 1;
  op->runs = 1;
  op->run_begin = Tick();
  for (size_t i = 0; i < op->uses.size(); ++i) {
    Use& use = op->uses[i];
    use.version = ctx.version(vars[i]);
    if (use.mode != AccessMode::kWrite) use.value = cells_[use.var].value;
  }
  Write(*op);
  op->run_end = Tick();
}

void World::PushOperator(Random& random) {
  const Operator& op = operators_[random.Below(operators_.size())];
  try {
    if (random.OneIn(4)) {
      eng_->Push(op, static_cast<int>(random.Below(5)) - 2);
    } else {
      eng_->Push(op);
    }
    operator_pushes_.fetch_add(1, std::memory_order_relaxed);
  } catch (const UsageError& error) {
    if (shutdown_begin_ == kNever) log_.Complain("an operator was refused: %s", error.what());
  } catch (const OpError& error) {  // raise_at_push; the op never fails
    log_.Complain("an operator raised: %s", error.what());
  }
}

}  // namespace engine::oracle
