#include "world.h"

#include <system_error>

#include "engine/testing/software_device.h"
#include "faults.h"

namespace engine::oracle {

using namespace std::chrono_literals;

namespace {
std::atomic<int64_t> g_closures{0};  // relaxed: it is read when all threads have ended
}

ClosureWitness::ClosureWitness(World* world, OpRecord* op, std::vector<Var> vars)
    : world_(world), op_(op), vars_(std::move(vars)) {
  g_closures.fetch_add(1, std::memory_order_relaxed);
}
ClosureWitness::~ClosureWitness() {
  if (!op_) return;
  const GoodAllocations good;
  world_->ClosureDestroyed(*op_, vars_);
  g_closures.fetch_sub(1, std::memory_order_relaxed);
}
int64_t ClosureWitness::alive() { return g_closures.load(std::memory_order_relaxed); }

World::World(const Shape& shape, uint64_t seed)
    : s_(shape),
      seed_(seed),
      noise_(seed, shape.noise),
      completer_(seed * 977),
      cells_(kMaxVars),
      deletions_(kMaxVars),
      open_over_shutdown_(s_.ending == Ending::kShutdownBeside && Has(kFork) ? std::make_shared<Open>() : nullptr) {
  log_.Allow(Has(kDeviceNoMemory) || Has(kDeviceNoThreads), Has(kCollectiveFaults));
  for (uint32_t v = 0; v < kMaxVars; ++v) cells_[v].value = InitialValue(v);
  MakeEngine();
  for (int64_t v = 0; v < s_.vars + s_.apart; ++v) vars_.push_back(eng_->NewVar("v" + std::to_string(v)));
  next_var_ = static_cast<uint32_t>(vars_.size());
  for (Slot& slot : slots_) RefreshSlot(slot, false);
  for (int i = 0; i < 6; ++i) scopes_.push_back(std::make_unique<Scope>());
  if (Has(kTwoEngines)) {
    partner_ =
        std::make_unique<Engine>(EngineOptions{.workers = Has(kPartnerWorkers) ? 1 + static_cast<int>(seed % 2) : 0});
    partner_var_ = partner_->NewVar("partner");
  }
}

World::~World() = default;

EngineOptions World::Options() {
  EngineOptions o;
  o.workers = static_cast<int>(s_.workers);
  o.io_threads = static_cast<int>(s_.io_threads);
  o.max_pending = static_cast<size_t>(s_.max_pending);
  o.spin = std::chrono::microseconds(s_.spin_us);
  o.policy = static_cast<Policy>(s_.policy);
  o.max_spare_threads = static_cast<int>(s_.spares);
  o.start_step = 2;  // measures plans under cost_model early, so that short programs reach all of its states
  o.stop_step = 6;
  o.pools = {{.name = "p", .threads = static_cast<int>(s_.pool_threads)}};
  o.on_unobserved = [this](const OpError& error) {
    const GoodAllocations good;
    log_.Reported(error);
  };
  o.drain_timeout = s_.ending == Ending::kWithheld ? 1000ms : 600000ms;
  if (s_.stall_ms) {
    o.stall_timeout = std::chrono::milliseconds(s_.stall_ms);
    o.on_stall = [](std::string_view) {};
  }
  if (Has(kLongTimeouts)) {
    if (s_.ending != Ending::kWithheld) o.drain_timeout = std::chrono::milliseconds::max();
    o.stall_timeout = std::chrono::milliseconds::max();
  }
  if (Has(kHooksThrow)) {
    o.on_start = [](int worker) {
      if (worker % 2 == 0) throw HookFailure("on_start");
    };
    o.on_end = [](int) { throw HookFailure("on_end"); };
  }
  if (Has(kDevices) || Has(kCollectives)) {
    for (int i = 0; i < 2; ++i) devices_.push_back(MakeSoftwareDevice({.ordinal = i}));
    o.devices = devices_;
    o.streams_per_device = 1 + static_cast<int>(seed_ % 4);
  }
  return o;
}

void World::MakeEngine() {
  const EngineOptions options = Options();
  if (Has(kNoThreads)) FailThreads(FewThreads());
  while (!eng_) {
    try {
      eng_ = new Engine(options);
    } catch (const Error&) {  // the system refused a thread: nothing was made, and it can be tried again
      FailThreads(0);
    }
  }
  FailThreads(0);  // this test is not about what is made before the pushers begin
}

// Uses every lane and pool, because each is made on first use.
void World::UseAllLanes() {
  std::vector<Placement> places{Io()};
  for (uint16_t d = 0; d < std::max<size_t>(devices_.size(), 1); ++d) {
    places.push_back(CopyIn(d));
    places.push_back(CopyOut(d));
  }
  for (uint16_t d = 0; d < devices_.size(); ++d)
    for (uint8_t lane = 0; lane < 8; ++lane) places.push_back(Gpu(d, lane));
  for (size_t i = 0; i < places.size();) {
    try {
      eng_->Push({.name = "first", .place = places[i]}, [] {});
      ++i;
    } catch (const Error&) {  // the system refused a thread; it can be tried again
      if (!Has(kNoThreads)) throw;
    }
  }
  eng_->WaitAll();
}

std::string World::DescribePending() const { return eng_ ? eng_->DescribePending() : "the engine is gone"; }

// Puts a new Var into the slot. The old one is deleted, or ends with its last handle.
void World::RefreshSlot(Slot& slot, bool by_delete) {
  Var fresh;
  try {
    fresh = eng_->NewVar("t");
  } catch (const UsageError&) {
    if (shutdown_begin_ == kNever) throw;
    return;
  }
  const uint32_t index = next_var_.fetch_add(1, std::memory_order_relaxed);
  if (index >= kMaxVars) return;
  Var old;
  uint32_t old_index;
  {
    std::lock_guard lock(slot.mu);
    old = std::exchange(slot.var, fresh);
    old_index = std::exchange(slot.index, index);
  }
  if (!old || !by_delete) return;
  const Var other = old;
  deletions_[old_index].begin = Tick();
  try {
    eng_->Delete(old);
  } catch (const UsageError& e) {
    if (shutdown_begin_ == kNever) log_.Complain("Delete of t%u was refused: %s", old_index, e.what());
  }
  deletions_[old_index].end = Tick();
  if (!Has(kWaitDeleted)) return;
  try {
    eng_->WaitFor(other, 1us);
    log_.Complain("a wait for t%u was not refused, although it was deleted before", old_index);
  } catch (const UsageError&) {
  } catch (const OpError& error) {
    log_.Shown(error);
    log_.Complain("a wait for t%u showed an error, although it was deleted before", old_index);
  }
}

void World::Run() {
  Random random(seed_ * 3 + 1);
  if (s_.ending == Ending::kShutdownBeside && !Has(kLateLanes)) UseAllLanes();
  if (Has(kPlans)) MakePlans(random);
  if (Has(kFork)) PrepareForks();
  if (Has(kOperators))
    for (int i = 0; i < 3; ++i) MakeOperator(random);
  if (Has(kNoThreads)) FailThreads(FewThreads());
  std::vector<std::thread> beside, pushers;
  beside.push_back(OwnThread([this] { ChaosMain(); }));
  if (Has(kStopRaces)) beside.push_back(OwnThread([this] { StopRacesMain(); }));
  if (s_.ending == Ending::kShutdownBeside) beside.push_back(OwnThread([this] { ShutDownBeside(); }));
  if (open_over_shutdown_) beside.push_back(OwnThread([this] { ForkDuringShutdown(); }));
  for (int64_t t = 0; t < s_.pushers; ++t)
    pushers.push_back(OwnThread([this, t] { PusherMain(static_cast<uint64_t>(t)); }));
  if (Has(kCollectives)) pushers.push_back(OwnThread([this] { CollectivesMain(); }));
  if (Has(kStages)) pushers.push_back(OwnThread([this] { StagesMain(); }));
  for (auto& t : pushers) t.join();
  stop_chaos_ = true;
  for (auto& t : beside) t.join();
  FailThreads(0);
  // Handles of operators and of plans are dropped at different times.
  if (seed_ & 1) operators_.clear();
  // Bodies and destructors of ops that are still pending may start plans.
  if ((seed_ & 2) && !Has(kNest | kPushInPieces | kDestructorsPush)) plans_.clear();
  End();
  completer_.Finish();
  log_.EngineGone(Has(kLateCompletion));
  left_runs_.clear();
  operators_.clear();
  plans_.clear();
  child_run_ = engine::Run();
  child_plan_ = Plan();
  child_var_ = Var();
  for (Completion& done : withheld_)
    std::exchange(done, Completion())();  // after the engine's end; this must do
                                          // nothing
}

void World::DropMail() {
  std::vector<HeldOp> mail;
  std::vector<engine::Run> runs;
  std::vector<std::shared_ptr<HeldOps>> open;
  {
    std::lock_guard lock(mail_mu_);
    mail.swap(mail_);
    runs.swap(run_mail_);
    open = open_held_ops_;
  }
  mail.clear();
  for (const auto& held : open) held->Release();
}

// Waits until WaitAll has shown every error.
void World::Settle() {
  for (;;) {
    try {
      eng_->WaitAll();
      return;
    } catch (const OpError& error) {
      log_.Reported(error);
    }
  }
}

void World::End() {
  const auto drop_held = [this] {
    DropMail();
    left_.clear();
    open_held_ops_.clear();
    left_held_ops_.clear();
    child_held_ops_.reset();
    child_memory_.Reset();
    child_held_.Release();
  };
  switch (s_.ending) {
    case Ending::kWaitAll: {
      drop_held();
      // Bodies push too; the next WaitAll waits for what they pushed during this one.
      int rounds = 0;
      do {
        Settle();
        stats_ = eng_->stats();
      } while (stats_.pushed != stats_.completed && ++rounds < 1000);
      has_stats_ = true;
      end_begins_ = true;
      if (seed_ % 3 == 0) eng_->Shutdown();
      break;
    }
    case Ending::kShutdown:
    case Ending::kShutdownBeside:
      end_begins_ = true;
      eng_->Shutdown();
      stats_ = eng_->stats();
      has_stats_ = true;
      break;
    case Ending::kDestroyed: break;
    case Ending::kWithheld: {
      drop_held();
      complete_at_once_ = true;  // so that no completion comes after drain_timeout, which would fail its op
      // Waits until only withheld ops, and ops that wait for those, are pending.
      uint64_t last = 0;
      for (int calm = 0; calm < 20;) {
        const uint64_t now = g_tick.load(std::memory_order_relaxed);
        calm = completer_.idle() && now == last ? calm + 1 : 0;
        last = now;
        try {
          eng_->WaitAllFor(5ms);
        } catch (const OpError& error) {
          log_.Reported(error);
        }
      }
      break;
    }
  }
  end_begins_ = true;
  Engine* const gone = eng_;
  delete gone;
  eng_ = nullptr;
  drop_held();
}

History World::TakeHistory() {
  History h;
  const uint32_t vars = std::min(next_var_.load(), kMaxVars);
  h.clears.resize(vars);
  h.deletions.assign(deletions_.begin(), deletions_.begin() + vars);
  for (uint32_t v = 0; v < vars; ++v) h.values.push_back(cells_[v].value);
  for (const Var& v : vars_) h.versions.push_back(v.version());
  for (const auto& scope : scopes_) h.cancels.push_back({scope->begin, scope->end});
  for (const auto& pusher : pushers_) {
    for (OpRecord& op : pusher->ops) h.ops.push_back(&op);
    for (const ClearRecord& c : pusher->clears) h.clears[c.var].push_back(c);
    h.waits.insert(h.waits.end(), pusher->waits.begin(), pusher->waits.end());
  }
  for (OpRecord& op : operator_ops_) h.ops.push_back(&op);
  h.operator_runs = operator_ops_.size();
  h.operator_pushes = operator_pushes_;
  h.shutdown = {shutdown_begin_, shutdown_end_.load()};
  h.second_calls = static_cast<uint64_t>(second_calls_.load());
  h.second_calls_in_time = static_cast<uint64_t>(second_calls_in_time_.load());
  h.stats = stats_;
  h.has_stats = has_stats_;
  log_.FillIn(&h);
  return h;
}

}  // namespace engine::oracle
