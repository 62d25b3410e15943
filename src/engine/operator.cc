// Reusable operators: a template of an op, checked and sorted once; a push copies it into a fresh block.
//
// The closure is shared by all pushes and counted by them: each block holds a shared_ptr to the state as its closure,
// so deletion is deferred until the last push has run.
#include <cstring>

#include "core.h"

namespace engine {

Operator::State::~State() {
  if (type && type->destroy) type->destroy(closure.get());  // no type: refused while it was made
}

namespace detail {
namespace {

using StatePtr = std::shared_ptr<Operator::State>;

struct SharedClosure {
  StatePtr state;
};

constexpr ClosureType kSharedType{
    sizeof(SharedClosure), alignof(SharedClosure),
    [](void* to, void* from) { ::new (to) SharedClosure(*static_cast<SharedClosure*>(from)); },
    [](void* self, RunContext& ctx, Completion* done) {
      Operator::State& s = *static_cast<SharedClosure*>(self)->state;
      s.type->run(s.closure.get(), ctx, done);
    },
    [](void* self) noexcept { static_cast<SharedClosure*>(self)->~SharedClosure(); }};

}  // namespace

std::shared_ptr<Operator::State> EngineCore::NewOperator(const PushRequest& request) {
  const OpDesc& desc = *request.desc;
  auto state = std::make_shared<Operator::State>();
  state->core = this;
  state->desc = {.name = desc.name, .place = desc.place, .priority = desc.priority, .run_always = desc.run_always};
  state->flags = request.flags;
  const auto keep = [&](const VarSet& set, const char* role, std::vector<Var>& out) {
    for (const VarRef& var : set) {
      CheckVar(var.core(), role, desc.name.c_str(), request.site);
      RetainVar(var.core());
      out.push_back(AdoptVar(var.core()));
    }
  };
  keep(desc.reads, "reads", state->reads);
  keep(desc.updates, "updates", state->updates);
  keep(desc.writes, "writes", state->writes);
  PoolIndex(desc.place);  // refuses an unknown pool here rather than at the first push
  if (desc.cancel) state->scope = *desc.cancel;
  state->closure = std::make_unique<std::byte[]>(request.closure.type->size);
  request.closure.type->construct(state->closure.get(), request.closure.object);
  state->type = request.closure.type;  // from here on there is something to destroy
  return state;
}

void EngineCore::PushOperator(const std::shared_ptr<Operator::State>& state, const int* priority, Site site) {
  if (!state)
    throw UsageError("an empty Operator was pushed at " + std::string(site.file) + ":" + std::to_string(site.line));
  if (state->core != this)
    throw UsageError("operator '" + std::string(state->desc.name.c_str()) + "' pushed at " + site.file + ":" +
                     std::to_string(site.line) + " belongs to another engine");
  OpDesc desc = state->desc;
  desc.reads = state->reads;
  desc.updates = state->updates;
  desc.writes = state->writes;
  if (state->scope) desc.cancel = &*state->scope;
  if (priority) desc.priority = *priority;
  SharedClosure closure{state};
  Push({.desc = &desc, .closure = {&kSharedType, &closure}, .site = site, .flags = state->flags});
}

}  // namespace detail
}  // namespace engine
