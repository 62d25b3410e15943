// What all communicators have in common: their ops, the checks of calls, and the failure that ends them.
#include <unistd.h>

#include <iterator>
#include <thread>
#include <vector>

#include "comm/backend.h"
#include "core/core.h"
#include "device/devices.h"

namespace engine {

namespace {

// By DataType, and by Collective::Kind.
constexpr struct {
  const char* name;
  size_t size;
} kTypes[] = {{"int8", 1},   {"uint8", 1},   {"int32", 4},   {"uint32", 4},  {"int64", 8},
              {"uint64", 8}, {"float16", 2}, {"float32", 4}, {"float64", 8}, {"bfloat16", 2}};
constexpr const char* kCollectives[] = {"all_reduce", "broadcast", "reduce_scatter", "all_gather", "send", "recv"};
static_assert(std::size(kTypes) == static_cast<size_t>(DataType::kBfloat16) + 1);
static_assert(std::size(kCollectives) == static_cast<size_t>(Collective::Kind::kRecv) + 1);

}  // namespace

size_t SizeOf(DataType type) noexcept {
  return static_cast<size_t>(type) < std::size(kTypes) ? kTypes[static_cast<size_t>(type)].size : 0;
}
const char* DataTypeName(DataType type) noexcept {
  return static_cast<size_t>(type) < std::size(kTypes) ? kTypes[static_cast<size_t>(type)].name : "no DataType";
}
const char* CollectiveName(Collective::Kind kind) noexcept {
  return static_cast<size_t>(kind) < std::size(kCollectives) ? kCollectives[static_cast<size_t>(kind)]
                                                             : "no Collective";
}

CommunicatorId NewCommunicatorId(std::string_view kind) {
  if (kind == "cuda") return detail::NewNcclId();
  if (kind == "software") return detail::NewLoopbackId();
  throw UsageError("an id for communicators on devices of kind '" + std::string(kind) +
                   "'; cuda and software are known");
}

namespace detail {

struct CommunicatorState final : ChannelOwner, std::enable_shared_from_this<CommunicatorState> {
  CommunicatorState(EngineCore* engine_core, CommunicatorOptions given, Site made_at)
      : core(engine_core), options(std::move(given)), site(made_at) {}

  // The first cause stays, whatever happens later.
  std::exception_ptr FailWith(const std::string& why) EXCLUDES(mu) {
    MutexLock lock(mu);
    if (!failure)
      failure = std::make_exception_ptr(CommunicatorError("communicator '" + options.name + "', rank " +
                                                          std::to_string(options.rank) + " of " +
                                                          std::to_string(options.size) + ": " + why));
    return failure;
  }
  std::exception_ptr Known() EXCLUDES(mu) {
    MutexLock lock(mu);
    return failure;
  }
  // Runs one step of the library on the communicator's own thread. If it throws, the communicator fails.
  template <class F>
  void Step(F&& step) EXCLUDES(mu) {
    if (const std::exception_ptr known = Known()) std::rethrow_exception(known);
    try {
      step();
    } catch (const std::exception& error) {
      const std::exception_ptr cause = FailWith(error.what());
      DevicesOf(*core).AskOwners();
      std::rethrow_exception(cause);
    }
  }
  void Check(const Collective& call) const;
  // Looks once whether the rank can leave. The other ranks may need this very thread, so the next look is an op behind
  // theirs; but not if there is no memory for that op.
  void Leave(Completion done) noexcept {
    const auto again = [this, self = shared_from_this(), done] { Leave(done); };
    while (!Close()) {
      std::this_thread::sleep_for(tuning::kLeaveNap);
      try {
        core->PushSync({.name = "communicator_leave", .place = Io(), .run_always = true}, RefClosure(again), site);
        return;
      } catch (const std::bad_alloc&) {
      } catch (const Error&) {
        backend->Abort("shut down");
        break;
      }
    }
    DevicesOf(*core).CloseChannel(*channel);
    done();
  }

  std::exception_ptr Failure() noexcept override {
    if (const std::exception_ptr known = Known()) return known;
    try {
      const std::string error = backend->AsyncError();
      return error.empty() ? nullptr : FailWith(error);
    } catch (const std::bad_alloc&) {  // the next look asks again
      return nullptr;
    }
  }
  void Fail(const std::string& why) noexcept override {
    try {
      (void)FailWith(why);
    } catch (const std::bad_alloc&) {  // there is no memory to say more
      MutexLock lock(mu);
      if (!failure) failure = std::current_exception();
    }
  }
  void Abort() noexcept override {
    try {
      backend->Abort(DescribeException(Known()));
    } catch (const std::bad_alloc&) {
      backend->Abort("no memory");
    }
  }
  bool Close() noexcept override {
    if (Known()) Abort();  // again, or for the first time, where nobody looks for failures any more
    return backend->Leave();
  }

  EngineCore* const core;  // kept alive by `var`
  const CommunicatorOptions options;
  const Site site;
  const pid_t process = getpid();
  Var var;
  // Of the device. Overwritten by each collective of any of its communicators: it orders them, and passes no failure on.
  std::shared_ptr<const Var> order;
  std::unique_ptr<CommBackend> backend;
  Channel* channel = nullptr;
  std::atomic<uint64_t> collectives{0}, groups{0};  // relaxed: counters
  Mutex mu;
  std::exception_ptr failure GUARDED_BY(mu);
};

void CommunicatorState::Check(const Collective& call) const {
  const auto refuse = [&](const std::string& what) {
    throw UsageError("communicator '" + options.name + "': " + CollectiveName(call.kind) + " " + what);
  };
  using Kind = Collective::Kind;
  const bool to_peer = call.kind == Kind::kSend || call.kind == Kind::kRecv;
  if (to_peer || call.kind == Kind::kBroadcast) {
    if (call.peer < 0 || call.peer >= options.size)
      refuse("names rank " + std::to_string(call.peer) + "; 0 to " + std::to_string(options.size - 1) + " are allowed");
    if (to_peer && call.peer == options.rank) refuse("names its own rank; a send or recv needs another one");
  }
  if (SizeOf(call.type) == 0) refuse("has an unknown data type; use one of engine::DataType");
  if (call.count == 0) return;
  const bool sends = call.kind != Kind::kRecv && (call.kind != Kind::kBroadcast || call.peer == options.rank);
  if (sends && !call.send) refuse("has a null send buffer; give memory of the device");
  if (call.kind != Kind::kSend && !call.recv) refuse("has a null receive buffer; give memory of the device");
}

}  // namespace detail

using detail::CommunicatorState;
using detail::EngineCore;

Communicator::Communicator(Engine& engine, CommunicatorOptions options, Site site) {
  const std::string label = "communicator '" + options.name + "': ";
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size)
    throw UsageError(label + "rank " + std::to_string(options.rank) + " of " + std::to_string(options.size) +
                     "; ranks are 0 to size - 1");
  if (options.id == CommunicatorId{})
    throw UsageError(label + "its id is empty: one rank makes it by NewCommunicatorId and ships it to the others");
  if (options.timeout.count() < 0) throw UsageError(label + "its timeout is negative; 0 means no limit");
  if (options.device < 0)
    throw UsageError(label + "its device is " + std::to_string(options.device) + "; 0 or more is expected");
  EngineCore* const core = engine.core_;
  Device& device = engine.device(options.device);
  const detail::Membership membership{options, Timeout(core->options().drain_timeout).nanoseconds() / 2};
  auto state = std::make_shared<CommunicatorState>(core, std::move(options), site);
  state->backend = device.info().kind == "cuda" ? detail::MakeNcclBackend(membership)
                                                : detail::MakeLoopbackBackend(membership, device);
  state->var = engine.NewVar(state->options.name);
  state->order = DevicesOf(*core).CollectiveOrder(static_cast<uint32_t>(state->options.device),
                                                  [&engine] { return engine.NewVar("collectives"); });
  state->channel = &DevicesOf(*core).OpenChannel(static_cast<uint32_t>(state->options.device), state,
                                                 Timeout(state->options.timeout).nanoseconds());
  state_ = std::move(state);
  const auto join = [s = state_](RunContext&) { s->Step([&] { s->backend->Join(); }); };
  const OpDesc desc{.name = "communicator_join", .updates = state_->var, .writes = *state_->order, .place = place()};
  try {
    core->PushSync(desc, detail::RefClosure(join), site);
  } catch (...) {
    DevicesOf(*core).CloseChannel(*state_->channel);
    throw;
  }
}

// Pushes the last op of the communicator. It is a host op, so it comes after all that was issued has ended.
void Communicator::End() noexcept {
  const std::shared_ptr<CommunicatorState> state = std::move(state_);
  // In a fork's child the communicator is lost.
  if (!state || state->process != getpid()) return;
  const auto leave = [s = state](RunContext&, Completion done) { s->Leave(std::move(done)); };
  const OpDesc desc{.name = "communicator_leave", .writes = state->var, .place = Io(), .run_always = true};
  try {
    state->core->Push(
        {.desc = &desc, .closure = detail::RefClosure<true>(leave), .site = state->site, .flags = detail::kAsyncOp});
  } catch (const Error&) {           // the engine has shut down, and has closed the channel
  } catch (const std::bad_alloc&) {  // the rank leaves with the engine, which closes the channel
  }
}

Communicator::~Communicator() { End(); }
Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this != &other) {
    End();
    state_ = std::move(other.state_);
  }
  return *this;
}

void Communicator::Push(Submitter& to, const OpDesc& desc, std::span<const Collective> calls,
                        std::shared_ptr<const void> owner, Site site) {
  CommunicatorState& s = State("Push");
  const std::string label = "communicator '" + s.options.name + "': op '" + desc.name.c_str() + "' ";
  if (s.process != getpid())
    throw UsageError(label + "in a fork's child: the communicator is the parent's; make one in the child");
  if (calls.empty()) throw UsageError(label + "has no calls; at least one is expected");
  if (desc.place.kind != Placement::Kind::kDefault)
    throw UsageError(label + "has a place; leave it unset, the op runs on the communicator's lane");
  if (desc.graph.kind != 0)
    throw UsageError(label +
                     "has a GraphKey; collectives are never in device graphs, which ranks would have to make alike");
  for (const Collective& call : calls) s.Check(call);
  std::vector<VarRef> updates(desc.updates.begin(), desc.updates.end());
  updates.emplace_back(s.var);
  std::vector<VarRef> writes(desc.writes.begin(), desc.writes.end());
  writes.emplace_back(*s.order);
  OpDesc op = desc;
  if (!*op.name.c_str()) op.name = calls.size() > 1 ? Name("collectives") : Name::Intern(CollectiveName(calls[0].kind));
  op.updates = std::span<const VarRef>(updates);
  op.writes = std::span<const VarRef>(writes);
  op.place = place();
  to.Push(
      op,
      [state = state_, group = std::vector<Collective>(calls.begin(), calls.end()),
       owner = std::move(owner)](RunContext& ctx) {
        state->Step([&] { state->backend->Issue(ctx, group); });
        state->collectives.fetch_add(group.size(), std::memory_order_relaxed);
        state->groups.fetch_add(1, std::memory_order_relaxed);
      },
      site);
}

void Communicator::Abort(std::string_view why) {
  if (State("Abort").process != getpid())
    throw UsageError("communicator '" + name() +
                     "': Abort in a fork's child: the communicator is the parent's; make one in the child");
  state_->Fail("aborted: " + std::string(why));
  DevicesOf(*state_->core).AskOwners();
}

std::vector<Communicator> NewCommunicators(Engine& engine, std::span<const int> devices,
                                           const CommunicatorOptions& options, Site site) {
  if (devices.empty())
    throw UsageError("communicator '" + options.name + "' of no devices; one is expected for each rank");
  CommunicatorOptions mine = options;
  mine.id = NewCommunicatorId(engine.device(devices[0]));
  mine.size = static_cast<int>(devices.size());
  std::vector<Communicator> made;
  try {
    for (mine.rank = 0; mine.rank < mine.size; ++mine.rank) {
      mine.device = devices[static_cast<size_t>(mine.rank)];
      made.emplace_back(engine, mine, site);
    }
  } catch (const std::exception& error) {  // nobody will meet the ranks that were made
    for (Communicator& rank : made) rank.Abort(std::string("another rank could not be made: ") + error.what());
    throw;
  }
  return made;
}

CommunicatorState& Communicator::State(const char* call) const {
  if (!state_) throw UsageError(std::string(call) + " of a communicator that was moved from");
  return *state_;
}
int Communicator::rank() const { return State("rank").options.rank; }
int Communicator::size() const { return State("size").options.size; }
const std::string& Communicator::name() const { return State("name").options.name; }
Placement Communicator::place() const {
  return {Placement::Kind::kCommunicator, static_cast<uint16_t>(State("place").channel->index)};
}
const Var& Communicator::var() const { return State("var").var; }
CommunicatorStats Communicator::stats() const {
  const CommunicatorState& s = State("stats");
  return {s.collectives.load(std::memory_order_relaxed), s.groups.load(std::memory_order_relaxed)};
}

}  // namespace engine
