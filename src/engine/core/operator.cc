// Operators: an op that is checked once and pushed often. Each push copies a template into a fresh block.
//
// All pushes share the closure, which is destroyed after the last of them. They are counted as the readers of a group
// are (dependency_ends.h): each push that ends subtracts one from zero, and the drop of the last handle adds how many there
// were. So an op costs only one read-modify-write.

#include "core/core.h"

namespace engine {

void Operator::State::End(int64_t n) {
  // acq_rel: every run of the closure comes before its destruction. Partner: this line in other threads.
  if (left.fetch_add(n, std::memory_order_acq_rel) == -n) delete this;
}

namespace detail {
namespace {

using State = Operator::State;

// The closure in a pushed block is a pointer to the operator's state. Each one that is constructed counts as a push.
State*& StateIn(void* closure) { return *static_cast<State**>(closure); }
constexpr ClosureType kSharedType{sizeof(State*),
                                  alignof(State*),
                                  false,
                                  [](void* to, void* from) {
                                    StateIn(to) = StateIn(from);
                                    StateIn(to)->pushed.fetch_add(1, std::memory_order_relaxed);
                                  },
                                  [](void* self, RunContext& ctx, Completion* done) {
                                    const Kernel& body = *StateIn(self)->body;
                                    body.type->run(body.memory, ctx, done);
                                  },
                                  [](void* self) noexcept { StateIn(self)->End(-1); }};

}  // namespace

std::shared_ptr<State> EngineCore::NewOperator(const PushRequest& request) {
  const OpDesc& desc = *request.desc;
  CheckPriority(desc.priority, desc.name, request.site);
  // When the last handle is dropped, adds how many pushes there were.
  std::shared_ptr<State> state(
      new State, [](State* last) { last->End(static_cast<int64_t>(last->pushed.load(std::memory_order_relaxed))); });
  state->core = this;
  state->desc = {.name = desc.name,
                 .place = desc.place,
                 .priority = desc.priority,
                 .run_always = desc.run_always,
                 .graph = desc.graph};
  state->flags = request.flags;
  const auto keep = [&](const VarSet& set, AccessMode mode, std::vector<Var>& out) {
    for (const VarRef& var : set) {
      CheckVar(var.core(), AccessModeName(mode), desc.name.c_str(), request.site);
      out.emplace_back(var);
    }
  };
  keep(desc.reads, AccessMode::kRead, state->reads);
  keep(desc.updates, AccessMode::kUpdate, state->updates);
  keep(desc.writes, AccessMode::kWrite, state->writes);
  pools_.Index(desc.place);  // refuses an unknown pool here rather than at the first push
  // The sets and the scope that pushes name are those kept here.
  state->desc.reads = state->reads;
  state->desc.updates = state->updates;
  state->desc.writes = state->writes;
  if (desc.cancel) state->desc.cancel = &state->scope.emplace(*desc.cancel);
  state->body.emplace(request.closure);
  MakeTemplate(*state);
  return state;
}

// Makes the block that pushes copy, all but what differs from push to push. Operators with a placement, a scope or many
// Vars get none, and are pushed like any op.
void EngineCore::MakeTemplate(State& state) {
  const size_t most = state.reads.size() + state.updates.size() + state.writes.size();
  if (state.desc.place.kind != Placement::Kind::kDefault || state.scope || state.flags || most > State::kMostAccesses)
    return;
  auto* op = ::new (state.block) OpRecord;
  const OpDesc& desc = state.desc;
  op->Init({.closure = &kSharedType, .name = desc.name.c_str(), .flags = desc.run_always ? kRunAlways : 0u});
  Protocol::SetPins(op, ListAccesses(op, desc));
  op->extra.state.store(OpState::kFree, std::memory_order_relaxed);
  StateIn(op->closure()) = &state;
  state.bytes = sizeof(OpRecord) + op->n_access * sizeof(Access) + sizeof(State*);
  op->extra.size_class = static_cast<uint8_t>(ClassOf(state.bytes));
}

// Refusals and slow ways have functions of their own, so that PushOperator needs no stack.
[[noreturn, gnu::cold, gnu::noinline]] static void RefuseOperator(const State* state, Site site) {
  if (!state) throw UsageError("an empty Operator was pushed at " + At(site) + "; make it with Engine::NewOperator");
  throw UsageError("operator '" + std::string(state->desc.name.c_str()) + "' pushed at " + At(site) +
                   " belongs to another engine; push it to the engine that made it");
}

void EngineCore::PushOperator(const std::shared_ptr<State>& state, const int* priority, Site site) {
  if (!state || state->core != this) [[unlikely]]
    RefuseOperator(state.get(), site);
  if (priority) CheckPriority(*priority, state->desc.name, site);
  if (state->bytes && !t_scopes.cancel) [[likely]]
    return PushTemplate(*state, priority ? *priority : state->desc.priority, site);
  PushWithoutTemplate(*state, priority ? *priority : state->desc.priority, site);
}

[[gnu::noinline]] void EngineCore::PushWithoutTemplate(State& state, int priority, Site site) {
  OpDesc desc = state.desc;
  desc.priority = priority;
  State* closure = &state;
  Push({.desc = &desc, .closure = {&kSharedType, &closure}, .site = site, .flags = state.flags});
}

}  // namespace detail
}  // namespace engine
