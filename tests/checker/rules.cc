#include "rules.h"

namespace checker {

namespace {
constexpr uint8_t Bit(int i) { return static_cast<uint8_t>(1u << i); }
}  // namespace

void Rules::Called(int op) {
  State::OpState& me = s_.op[op];
  const OpSpec& spec = scenario_.ops[op];
  for (size_t k = 0; k < scenario_.ops.size(); ++k) {
    const State::OpState& other = s_.op[k];
    if (!other.returned || other.refused || !Conflict(spec, scenario_.ops[k])) continue;
    if (scenario_.ops[k].deletes) me.must_be_refused = true;
    if (InTheWay(static_cast<int>(k), op)) me.behind |= Bit(static_cast<int>(k));
  }
}

const char* Rules::Entered(int op, int var) {
  State::OpState& me = s_.op[op];
  State::VarState& v = s_.var[var];
  const OpSpec& spec = scenario_.ops[op];
  if (v.deleted) return "an op took its place behind the deletion of its Var";
  for (size_t k = 0; k < scenario_.ops.size(); ++k) {
    const State::OpState& other = s_.op[k];
    if ((other.entered & Bit(var)) && !(other.released & Bit(var)) && ConflictOn(var, spec, scenario_.ops[k]))
      me.behind |= Bit(static_cast<int>(k));
  }
  me.entered |= Bit(var);
  v.pushed += spec.makes_version(*spec.Find(var));
  v.deleted = spec.deletes && !spec.Find(var)->read();
  if (OrderHasCycleThrough(op)) return "two pushes were ordered one way on one Var and the other way on another";
  return nullptr;
}

bool Rules::OrderHasCycleThrough(int op) const {
  // What is registered in one step has one place.
  const auto behind_of = [&](int of) {
    uint8_t behind = 0;
    for (int k = scenario_.FirstOf(of); k <= scenario_.LastOf(of); ++k) behind |= s_.op[k].behind;
    return behind;
  };
  uint8_t reached = behind_of(op);
  for (uint8_t before = 0; before != reached;) {
    before = reached;
    for (size_t k = 0; k < scenario_.ops.size(); ++k)
      if (reached & Bit(static_cast<int>(k))) reached |= behind_of(static_cast<int>(k));
  }
  for (int k = scenario_.FirstOf(op); k <= scenario_.LastOf(op); ++k)
    if (reached & Bit(k)) return true;
  return false;
}

const char* Rules::Returned(int op) {
  State::OpState& me = s_.op[op];
  uint8_t vars = 0;
  for (const AccessSpec& access : scenario_.ops[op].accesses) vars |= Bit(access.var);
  if (me.must_be_refused) return "a push behind the deletion of its Var was accepted";
  if (me.entered != vars) return "a push returned without a place on each of its Vars";
  me.returned = true;
  return nullptr;
}

const char* Rules::Refused(int op, int var) {
  State::OpState& me = s_.op[op];
  if (!s_.var[var].deleted) return "a push was refused for a Var that is not deleted";
  if (me.entered) return "a refused push kept its place on a Var";
  me.returned = me.refused = me.ended = true;
  me.released = UINT8_MAX;
  me.behind = 0;
  return nullptr;
}

const char* Rules::Ready(int op, const uint64_t* versions) {
  State::OpState& me = s_.op[op];
  const OpSpec& spec = scenario_.ops[op];
  if (me.ready) return "an op became ready twice";
  if (me.behind) return "an op became ready before an op ahead of it, in conflict with it, ended";
  for (size_t i = 0; i < spec.accesses.size(); ++i) {
    const AccessSpec& access = spec.accesses[i];
    if (!(me.entered & Bit(access.var))) return "an op became ready without a place on each of its Vars";
    if (versions[i] != s_.var[access.var].version + uint64_t{spec.makes_version(access)})
      return access.read() ? "a reader carries another version than the last write before it made"
                           : "a write carries another version than the next one";
  }
  for (size_t k = 0; k < scenario_.ops.size(); ++k) {
    const State::OpState& other = s_.op[k];
    if (other.ready && InTheWay(static_cast<int>(k), op)) return "two ops in conflict may run at the same time";
  }
  me.ready = true;
  return nullptr;
}

const char* Rules::Ended(int op) {
  State::OpState& me = s_.op[op];
  if (!me.ready || me.ended) return "an op ended that was not running";
  for (const AccessSpec& access : scenario_.ops[op].accesses)
    if (const char* broken = EndedOn(op, access.var)) return broken;
  me.ended = true;
  return nullptr;
}

const char* Rules::EndedOn(int op, int var) {
  State::OpState& me = s_.op[op];
  const OpSpec& spec = scenario_.ops[op];
  if (!me.ready || (me.released & Bit(var))) return "an op ended on a Var on which it was not running";
  me.released |= Bit(var);
  s_.var[var].version += spec.makes_version(*spec.Find(var));
  for (size_t k = 0; k < scenario_.ops.size(); ++k)
    if (!InTheWay(op, static_cast<int>(k))) s_.op[k].behind &= static_cast<uint8_t>(~Bit(op));
  me.ended = me.released == me.entered;
  return nullptr;
}

bool Rules::InTheWay(int op, int of) const {
  for (int var = 0; var < kMaxVars; ++var)
    if (!(s_.op[op].released & Bit(var)) && ConflictOn(var, scenario_.ops[op], scenario_.ops[of])) return true;
  return false;
}

const char* Rules::LookedSettled(int var, bool settled) {
  if (!settled) return nullptr;
  for (size_t k = 0; k < scenario_.ops.size(); ++k) {
    const AccessSpec* const access = scenario_.ops[k].Find(var);
    if (access && scenario_.ops[k].makes_version(*access) && s_.op[k].returned && !(s_.op[k].released & Bit(var)))
      return "a Var was called settled before a write ended whose push had returned";
  }
  return nullptr;
}

const char* Rules::AtRest(uint8_t held) const {
  for (size_t k = 0; k < scenario_.ops.size(); ++k) {
    if (!s_.op[k].returned) return "deadlock: a push never returned";
    if (!s_.op[k].ended && !(held & Bit(static_cast<int>(k)))) return "deadlock: an op never became ready";
  }
  if (held) return nullptr;
  for (const State::VarState& v : s_.var)
    if (v.version != v.pushed) return "versions were given out that nobody made";
  return nullptr;
}

}  // namespace checker
