// What ops do: look at their Vars, do something, write, and end in one of all possible ways.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/testing/software_device.h"
#include "faults.h"
#include "world.h"

namespace engine::oracle {

using namespace std::chrono_literals;

namespace {
// How many bodies on this thread's stack wait at the moment. No op of the engine may run on top of them.
thread_local int t_waiting_bodies = 0;
struct Waiting {
  Waiting() { ++t_waiting_bodies; }
  ~Waiting() { --t_waiting_bodies; }
};
// In how many pieces of ParallelFor this thread is. There waits are refused, also in an op that runs at its push.
thread_local int t_pieces = 0;
struct InPiece {
  InPiece() { ++t_pieces; }
  ~InPiece() { --t_pieces; }
};
}  // namespace

void World::Begin(OpRecord& op, const std::vector<Var>& vars, RunContext& ctx) {
  if (op.runs || op.closures_destroyed) {
    // Nothing of the op can be trusted any more, so the process ends here, and shows this stack.
    fprintf(stderr, "o%u runs although it ran %d times and its closure was destroyed %d times\n", op.id, op.runs,
            op.closures_destroyed);
    abort();
  }
  ++op.runs;
  if (t_waiting_bodies) log_.Complain("o%u runs on the stack of an op that waits", op.id);
  op.run_begin = Tick();
  noise_.Point(op.seed, 1);
  for (size_t i = 0; i < op.uses.size(); ++i)
    if (vars[i]) op.uses[i].version = ctx.version(vars[i]);
}

// Reads the Vars, does something, and checks that nobody wrote meanwhile.
void World::See(OpRecord& op, const std::vector<Var>& vars, RunContext& ctx) {
  Begin(op, vars, ctx);
  for (Use& use : op.uses)
    if (use.mode != AccessMode::kWrite) use.value = cells_[use.var].value;
  Random random(op.seed);
  WhileRunning(op, ctx, random);
  for (const Use& use : op.uses)
    if (use.mode != AccessMode::kWrite && use.value != cells_[use.var].value) op.changed_while_held = true;
}

void World::Write(OpRecord& op) {
  if (op.changed_while_held) return;
  op.wrote = true;
  for (const Use& use : op.uses)
    if (use.mode != AccessMode::kRead) cells_[use.var].value = WrittenValue(use.mode, use.value, use.var, op.id);
}

void World::Throw(OpRecord& op) {
  op.failed = true;
  op.run_end = Tick();
  if (Has(kNullErrors)) {
    switch (op.seed / 7 % 4) {
      case 0: throw nullptr;
      case 1: throw static_cast<const char*>(nullptr);
      case 2: throw NullWhat();
      default: break;
    }
  }
  throw PlannedFailure{op.id};
}

void World::SyncBody(OpRecord& op, const std::vector<Var>& vars, RunContext& ctx) {
  const GoodAllocations good;
  See(op, vars, ctx);
  if (op.failure == Failure::kBeforeWriting) Throw(op);
  Write(op);
  noise_.Point(op.seed, 2);
  if (op.failure == Failure::kAfterWriting) Throw(op);
  op.run_end = Tick();
}

// The body issues copies and a kernel. The kernel does what bodies of other ops do.
void World::DeviceBody(OpRecord& op, const std::vector<Var>& vars, RunContext& ctx) {
  GoodAllocations good;
  const bool refuses = Has(kDeviceNoMemory) && op.seed % 8 == 5;
  if (refuses) good.ThenFail(1 + static_cast<int64_t>(op.seed / 8 % 6), 1 + static_cast<int64_t>(op.seed / 64 % 12));
  Begin(op, vars, ctx);
  op.run_begin = kNever;  // until the device runs the kernel
  op.run_end = 0;
  if (op.failure == Failure::kBeforeWriting) {
    op.failed = true;
    throw PlannedFailure{op.id};
  }
  try {
    IssueOnDevice(op, ctx);
  } catch (const std::bad_alloc&) {
    op.failed = true;
    op.run_end = 0;  // nothing was launched
    throw PlannedFailure{op.id};
  }
}

void World::IssueOnDevice(OpRecord& op, RunContext& ctx) {
  auto& device = static_cast<SoftwareDevice&>(ctx.device());
  const auto check = [](const DeviceStatus& status) {
    if (!status.ok()) throw DeviceError(status);
  };
  const Stream stream = ctx.stream();
  const bool copies = op.seed % 4 == 0;
  DeviceMemory on_device;
  std::shared_ptr<DeviceMemory> pinned;
  std::optional<FailingAllocations> failing;
  if (Has(kDeviceNoMemory) && op.seed % 32 == 16) failing.emplace(1 + static_cast<int64_t>(op.seed / 32 % 24));
  if (copies) {
    on_device = ctx.Allocate(sizeof(uint64_t));
    pinned = std::make_shared<DeviceMemory>(ctx.AllocatePinned(2 * sizeof(uint64_t)));
    auto* const words = static_cast<uint64_t*>(pinned->data());
    words[0] = op.seed;
    words[1] = 0;
    check(device.CopyIn(on_device.data(), words, sizeof(uint64_t), stream, MemoryKind::kPinned));
    check(device.CopyOut(words + 1, on_device.data(), sizeof(uint64_t), stream, MemoryKind::kPinned));
  }
  op.run_end = kNever;
  check(device.Launch(stream, "o", 0ns, [this, &op, pinned] {
    const GoodAllocations good_there;
    op.run_begin = Tick();
    ++op.kernels;
    if (pinned && static_cast<uint64_t*>(pinned->data())[1] != op.seed)
      log_.Complain("o%u: a kernel ran before the copy in front of it", op.id);
    for (Use& use : op.uses)
      if (use.mode != AccessMode::kWrite) use.value = cells_[use.var].value;
    noise_.Point(op.seed, 3);
    for (const Use& use : op.uses)
      if (use.mode != AccessMode::kWrite && use.value != cells_[use.var].value) op.changed_while_held = true;
    Write(op);
    op.run_end = Tick();
  }));
  failing.reset();
  if (!Has(kDeviceNoMemory) || !copies) return;
  const FailingAllocations none(1);  // what is given back needs none
  on_device.Reset();
}

void World::AsyncBody(OpRecord& op, const std::vector<Var>& vars, RunContext& ctx, Completion done) {
  const GoodAllocations good;
  if (op.failure == Failure::kWithheld) {
    Begin(op, vars, ctx);
    op.failed = true;
    op.run_end = kNever;
    if (Has(kOverlapAtEnd)) {  // the op keeps its Vars until the body returns
      for (Use& use : op.uses)
        if (use.mode != AccessMode::kWrite) use.value = cells_[use.var].value;
      std::this_thread::sleep_for(5ms);  // so that the shutdown finds it running
      for (const Use& use : op.uses)
        if (use.mode != AccessMode::kWrite && use.value != cells_[use.var].value) op.changed_while_held = true;
      op.run_end = Tick();
    }
    std::lock_guard lock(withheld_mu_);
    withheld_.push_back(std::move(done));
    return;
  }
  See(op, vars, ctx);
  if (op.failure == Failure::kBeforeWriting) Throw(op);
  const bool now = op.seed % 4 == 0 || complete_at_once_;
  if (!Has(kLateContext)) return LaterOrNow(now, [this, &op, done] { EndAsync(op, done); });
  const std::string name = "o" + std::to_string(op.id);
  const EarlyContext early = LookEarly(ctx);
  LaterOrNow(now, [this, &op, done = std::move(done)] { EndAsync(op, done); });
  LookLate(early, name, ctx);
}

void World::LaterOrNow(bool now, std::function<void()> end) {
  if (now) return end();
  completer_.Post(std::move(end));
}

void World::EndAsync(OpRecord& op, Completion done) {
  noise_.Point(op.seed, 4);
  if (op.failure != Failure::kByCompletion || op.seed % 3) Write(op);
  op.failed = op.failure != Failure::kNone;
  const Failure failure = op.failure;
  const uint32_t id = op.id;
  if (op.completes_twice) second_calls_.fetch_add(1, std::memory_order_relaxed);
  Completion again = op.completes_twice ? done : Completion();
  op.run_end = Tick();
  // From here on the op may be over, and another thread may use its record.
  if (failure == Failure::kByCompletion) {
    done.Fail(PlannedFailure{id});
  } else if (failure == Failure::kNone) {
    done();
  }
  if (!again) return;
  again();
  // After the call: a second call that returns before the end begins must be reported; a later one may be.
  if (!end_begins_.load(std::memory_order_acquire)) second_calls_in_time_.fetch_add(1, std::memory_order_relaxed);
}

void World::ClosureDestroyed(OpRecord& op, const std::vector<Var>& vars) {
  ++op.closures_destroyed;
  if (op.runs) return PushFromDestructor(op);
  ++op.skips;
  op.skip_tick = Tick();
  for (size_t i = 0; i < op.uses.size(); ++i)
    if (vars[i]) op.uses[i].version = vars[i].version() + (op.uses[i].mode != AccessMode::kRead);
  PushFromDestructor(op);
}

// --- what a body does between its reads and its writes

void World::PushInside(OpRecord& op, Random& random) {
  Pusher* const me = BorrowPusher();
  const uint64_t n = 1 + random.Below(3);
  for (uint64_t i = 0; i < n; ++i) PushOne(*me, random, op.depth + 1);
  GiveBack(me);
}

// Whether a wait inside a body was refused because there is no stand-in, as it may be. What it waited for goes on.
bool World::LacksStandIn(const std::exception& error) const {
  return Has(kFewSpares) && strstr(error.what(), "stand-in threads are in use");
}

void World::WaitForOwn(OpRecord& op) {
  Var mine = eng_->NewVar();
  const auto x = std::make_shared<int>(0);
  CancelScope never;
  try {
    eng_->Push({.name = "inner", .writes = {mine}, .cancel = &never}, [x] { *x = 1; });
    const Waiting waiting;
    eng_->Wait(mine);
    if (*x != 1) log_.Complain("o%u: an inner op was not over after the wait for it", op.id);
  } catch (const std::exception& e) {
    if (!LacksStandIn(e)) log_.Complain("o%u: an inner wait threw %s", op.id, e.what());
  }
}

void World::WaitForPartner(OpRecord& op) {
  const auto x = std::make_shared<int>(0);
  try {
    const Var mine = partner_->NewVar();
    CancelScope never;
    partner_->Push({.name = "partner", .updates = {partner_var_}, .writes = {mine}, .cancel = &never},
                   [this, x, id = op.id] {
                     *x = 1;
                     if (t_waiting_bodies)
                       log_.Complain("the other engine's op runs on the stack of o%u, which waits", id);
                   });
    const Waiting waiting;
    partner_->Wait(mine);
    if (*x != 1) log_.Complain("o%u: the other engine's op was not over after the wait for it", op.id);
  } catch (const std::exception& e) {
    if (!LacksStandIn(e)) log_.Complain("o%u: a wait for the other engine threw %s", op.id, e.what());
  }
}

void World::RefusedInside(OpRecord& op) {
  try {
    eng_->WaitAllFor(1ms);
    log_.Complain("o%u: WaitAll inside an op was not refused", op.id);
  } catch (const UsageError&) {
  }
  for (const Use& use : op.uses) {
    if (use.var >= vars_.size()) continue;
    try {
      eng_->WaitFor(vars_[use.var], 1ms);
      log_.Complain("o%u: a wait for its own Var was not refused", op.id);
    } catch (const UsageError&) {
    }
    return;
  }
}

void World::RunPieces(OpRecord& op, RunContext& ctx, Random& random) {
  std::array<std::atomic<int>, 64> done{};
  const size_t n = 1 + random.Below(done.size());
  const bool push = Has(kPushInPieces) && op.depth < 2;
  ctx.ParallelFor(n, 1 + random.Below(8), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) ++done[i];
    if (!push || end != n) return;  // the last piece, because another thread is likelier to run it
    const InPiece in_piece;
    Random of_piece(op.seed);
    PushInside(op, of_piece);
    RefusedInside(op);
  });
  for (size_t i = 0; i < n; ++i)
    if (done[i] != 1) log_.Complain("o%u: a piece of ParallelFor ran %d times", op.id, done[i].load());
}

void World::WhileRunning(OpRecord& op, RunContext& ctx, Random& random) {
  switch (random.Below(40)) {
    case 0:
    case 1:
    case 2:
    case 3:
      if (Has(kNest) && op.depth < 2) PushInside(op, random);
      break;
    case 4:
      if (Has(kWaitInside) && !t_pieces) WaitForOwn(op);
      break;
    case 5: {
      // Only ops that are not apart wait for ops that are, so that they cannot wait for each other.
      bool waits = Has(kWaitInside) && !t_pieces && s_.apart > 0 && op.depth == 0 && !op.uses.empty();
      for (const Use& use : op.uses) waits &= use.var < s_.vars || use.var >= vars_.size();
      if (!waits) break;
      Pusher* const me = BorrowPusher();
      {
        const Waiting waiting;
        const auto var =
            static_cast<uint32_t>(s_.vars + static_cast<int64_t>(random.Below(static_cast<uint64_t>(s_.apart))));
        WaitForVar(*me, random, var, vars_[var], true);
      }
      GiveBack(me);
      break;
    }
    case 6:
      if (Has(kWaitInside)) RefusedInside(op);
      break;
    case 7:
    case 8: std::this_thread::yield(); break;
    case 9: std::this_thread::sleep_for(std::chrono::microseconds(random.Below(300))); break;
    case 10:
      if (Has(kParallel)) RunPieces(op, ctx, random);
      break;
    case 11:
      if (Has(kTwoEngines)) WaitForPartner(op);
      break;
    default: break;
  }
}

}  // namespace engine::oracle
