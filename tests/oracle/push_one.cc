// Pushes one random op, in one of all possible ways.
#include <array>
#include <map>

#include "faults.h"
#include "put.h"

namespace engine::oracle {
namespace {

// An op that is pushed inside a body is of one of the first thirteen kinds.
enum Kind : uint32_t {
  kAsyncLast = 2,
  kHeldOne = 3,
  kHeldOpsFirst = 4,
  kHeldOpsLast = 5,
  kTry = 6,
  kPlainLast = 10,
  kPlanFirst = 11,
  kPlanLast = 12,
  kInsideKinds = 13,
  kOperator = 13,
  kClearOne = 14,
  kOnDevice = 15,
  kOutsideKinds = 20,
};

Completion Deferred(RunContext& ctx) {
  const GoodAllocations good;
  return ctx.Defer();
}

}  // namespace

uint32_t World::NextId(Pusher& me) {
  // The numbers of a pusher's ops follow from the seed; ops of bodies share the numbers that are left.
  const auto stride = static_cast<uint32_t>(s_.pushers) + 1;
  if (Inside(me)) return next_inner_.fetch_add(1, std::memory_order_relaxed) * stride + stride - 1;
  return me.pushed++ * stride + static_cast<uint32_t>(me.number);
}

// Random Vars with duplicates, in three lists. The record has each Var once, in its strongest access mode.
OpRecord& World::NewRecord(Pusher& me, Random& random, const Want& want, Sets* sets) {
  OpRecord& op = me.ops.emplace_back();
  op.id = NextId(me);
  op.seed = random.Next();
  op.depth = want.depth;
  const uint64_t size = random.Below(20);
  uint64_t n = size == 0 ? 0 : size < 3 ? 8 + random.Below(8) : 1 + random.Below(5);
  if (s_.wide && random.OneIn(static_cast<uint64_t>(s_.wide)) && want.wide) n = 30 + random.Below(40);
  const bool heals = random.OneIn(8);
  struct Named {
    uint32_t index;
    Var var;
  };
  std::array<std::vector<Named>, 3> lists;  // by AccessMode
  if (want.behind_output) {
    lists[0].push_back({want.behind->op->out_var, want.behind->output});
  } else if (want.behind) {
    lists[0].push_back({want.behind->op->run_var, want.behind->run.var()});
  }
  for (uint64_t i = 0; i < n; ++i) {
    Named named;
    if (want.apart) {
      named.index =
          static_cast<uint32_t>(s_.vars + static_cast<int64_t>(random.Below(static_cast<uint64_t>(s_.apart))));
      named.var = vars_[named.index];
    } else if (Has(kDelete) && random.OneIn(6) && want.deleted) {
      Slot& slot = slots_[random.Below(kSlots)];
      std::lock_guard lock(slot.mu);
      named = {slot.index, slot.var};
    } else {
      named.index = static_cast<uint32_t>(random.Below(static_cast<uint64_t>(s_.vars)));
      named.var = vars_[named.index];
    }
    lists[heals ? 2 : random.OneIn(2) ? 0 : 1 + random.Below(2)].push_back(std::move(named));
  }
  uint32_t listed = 0;
  std::map<uint32_t, size_t> at;
  for (size_t m = 0; m < lists.size(); ++m) {
    const auto mode = static_cast<AccessMode>(m);
    for (Named& named : lists[m]) {
      const auto [it, fresh] = at.emplace(named.index, op.uses.size());
      if (fresh) {
        op.uses.push_back({named.index, mode, listed});
        sets->by_use.push_back(named.var);
        if (want.behind && named.index == want.behind->op->run_var) {
          op.uses.back().run = want.behind->op;
          if (op.seed & 64) sets->by_use.back() = Var();  // else the op's closure keeps the Var, whatever its run does
        }
      } else if (Use& use = op.uses[it->second]; use.mode != mode) {
        use.mode = AccessMode::kUpdate;
      }
      ++listed;
      (mode == AccessMode::kRead     ? sets->reads
       : mode == AccessMode::kUpdate ? sets->updates
                                     : sets->writes)
          .push_back(named.var);
    }
  }
  if (Has(kFail)) {
    op.always = random.OneIn(10);
    if (random.OneIn(static_cast<uint64_t>(s_.fail_in)))
      op.failure = random.OneIn(2) ? Failure::kBeforeWriting : Failure::kAfterWriting;
  }
  return op;
}

// Makes a closure of one of two sizes, and calls push(closure).
template <class Push>
void World::PushBody(Put& put, Push&& push) {
  const auto make = [&]<size_t kBytes>(std::array<char, kBytes> more) {
    push([witness = ClosureWitness(this, &put.op, put.sets.by_use), more](RunContext& ctx) mutable {
      (void)more;
      OpRecord& op = witness.op();
      if (op.on_device) {
        witness.world().DeviceBody(op, witness.vars(), ctx);
      } else {
        witness.world().SyncBody(op, witness.vars(), ctx);
      }
    });
  };
  if (put.op.seed % 16 == 3) {
    make(std::array<char, 300>{});  // too large for the op's own block
  } else {
    make(std::array<char, 1>{});
  }
}

void World::PushAsync(Put& put) {
  OpRecord& op = put.op;
  op.asynchronous = true;
  // Its start takes memory for its completion, maybe on the thread of a device.
  op.may_be_refused = op.may_be_refused || Has(kDeviceNoMemory);
  if (op.failure == Failure::kAfterWriting)
    op.failure = put.random.OneIn(2) ? Failure::kByCompletion : Failure::kDropped;
  const bool withheld = s_.ending == Ending::kWithheld;
  op.completes_twice = Has(kFail) && !withheld && put.random.OneIn(60) &&
                       (op.failure == Failure::kNone || op.failure == Failure::kByCompletion);
  if (withheld) op.failure = Failure::kWithheld;
  const bool may_wait = !put.random.OneIn(4);
  if (Has(kDefer) && op.seed % 8 >= 5 && !op.on_device) {
    auto defers = [witness = ClosureWitness(this, &op, put.sets.by_use)](RunContext& ctx) mutable {
      witness.world().AsyncBody(witness.op(), witness.vars(), ctx, Deferred(ctx));
    };
    Attempt(put.me, op, [&] {
      if (!may_wait) return eng_->TryPush(put.desc, std::move(defers));
      eng_->Push(put.desc, std::move(defers));
      return true;
    });
    return;
  }
  auto body = [witness = ClosureWitness(this, &op, put.sets.by_use)](RunContext& ctx, Completion done) mutable {
    witness.world().AsyncBody(witness.op(), witness.vars(), ctx, std::move(done));
  };
  Attempt(put.me, op, [&] {
    if (!may_wait) return eng_->TryPushAsync(put.desc, std::move(body));
    eng_->PushAsync(put.desc, std::move(body));
    return true;
  });
}

void World::PushHeld(Put& put) {
  PushBody(put, [&](auto&& body) {
    Attempt(put.me, put.op, [&] {
      HeldOp held = eng_->PushHeld(put.desc, std::move(body));
      const GoodAllocations good;
      put.me.held.push_back(std::move(held));
      return true;
    });
  });
  if (put.random.OneIn(4) && !put.me.held.empty()) {  // another thread will drop it
    std::lock_guard lock(mail_mu_);
    mail_.push_back(std::move(put.me.held.back()));
    put.me.held.pop_back();
  }
}

void World::PushToHeldOps(Put& put) {
  Pusher& me = put.me;
  if (!me.held_ops) {
    me.held_ops = std::make_shared<HeldOps>(*eng_);
    std::lock_guard lock(mail_mu_);
    if (open_held_ops_.size() < 16) open_held_ops_.push_back(me.held_ops);  // so that other threads release it too
  }
  if (!put.op.on_device) put.desc.place = Cpu();  // goes past the held ops
  PushBody(put, [&](auto&& body) {
    Attempt(me, put.op, [&] {
      me.held_ops->Push(put.desc, std::move(body));
      return true;
    });
  });
  if (put.random.OneIn(12)) me.held_ops->Release();
  if (put.random.OneIn(40)) me.held_ops.reset();
}

bool World::MayWithhold() {
  constexpr int kFew = 8;
  return Has(kManyWithheld) || withheld_count_.fetch_add(1, std::memory_order_relaxed) < kFew;
}

void World::ClearOne(Pusher& me, Random& random) {
  ClearRecord c{static_cast<uint32_t>(random.Below(vars_.size())), Tick(), kNever};
  try {
    eng_->ClearError(vars_[c.var]);
  } catch (const UsageError& error) {
    if (shutdown_begin_ == kNever) log_.Complain("ClearError was refused: %s", error.what());
    return;
  }
  c.end = Tick();
  me.clears.push_back(c);
}

void World::PushOne(Pusher& me, Random& random, int depth) {
  const bool inside = depth > 0;
  const bool apart = s_.apart > 0 && (random.OneIn(4) || (inside && random.OneIn(2)));
  const auto kind = static_cast<uint32_t>(random.Below(inside ? kInsideKinds : kOutsideKinds));
  if (kind >= kPlanFirst && kind <= kPlanLast && !plans_.empty()) return StartPlan(me, random, inside);
  if (kind == kOperator && !operators_.empty()) return PushOperator(random);
  if (kind == kClearOne && Has(kClear)) return ClearOne(me, random);

  const bool held = kind == kHeldOne && Has(kHeld) && !inside && !apart &&
                    (s_.ending != Ending::kShutdownBeside || Has(kHeldDeleted));
  const bool asynchronous = kind <= kAsyncLast && Has(kAsync);
  const bool to_held_ops = kind >= kHeldOpsFirst && kind <= kHeldOpsLast && Has(kHeldOps) && !inside;
  const bool bulked = kind > kOnDevice && Has(kBulks) && random.OneIn(2);
  const bool device = Has(kDevices) && (kind == kOnDevice || bulked || (to_held_ops && !random.OneIn(4)));
  Want want{.depth = depth, .apart = apart};
  // Ops that shutdown finds held or uncompleted, and ops that PushHeld may refuse.
  want.wide =
      held ? Has(kHeldWide) || Has(kHeldDeleted) : s_.ending == Ending::kWaitAll || !asynchronous || Has(kHeldWide);
  want.deleted = !held || !want.wide || Has(kHeldDeleted);
  if (!apart) PushBehindARun(me, random, want);
  Sets sets;
  OpRecord& op = NewRecord(me, random, want, &sets);

  CancelScope* scope = inside && (!Has(kNestPlainScope) || me.in_destructor) ? &me.never : nullptr;
  if (Has(kCancel) && !inside && random.OneIn(10)) {
    op.scope = static_cast<int>(random.Below(scopes_.size()));
    scope = &scopes_[static_cast<size_t>(op.scope)]->scope;
  }
  Placement place = Cpu();
  if (Has(kPlaces) && !device) {
    if (random.OneIn(12)) place = Io();
    if (random.OneIn(12)) place = eng_->Pool("p");
    if (random.OneIn(30) && devices_.empty()) place = random.OneIn(2) ? CopyIn() : CopyOut();
  }
  if (device) {
    const auto index = static_cast<uint16_t>(random.Below(devices_.size()));
    place = random.OneIn(4)   ? CopyIn(index)
            : random.OneIn(4) ? CopyOut(index)
            : random.OneIn(2) ? Gpu(index)
                              : Gpu(index, static_cast<uint8_t>(random.Below(3)));
    op.on_device = true;
    op.may_be_refused = Has(kDeviceNoMemory) || Has(kDeviceNoThreads);
    if (op.failure == Failure::kAfterWriting) op.failure = Failure::kBeforeWriting;
  }
  Put put{me, random, op, std::move(sets), {}, kind};
  put.desc = {.name = Name::Intern("o" + std::to_string(op.id)),
              .reads = put.sets.reads,
              .updates = put.sets.updates,
              .writes = put.sets.writes,
              .place = place,
              .priority = Has(kPlaces) && random.OneIn(5) ? static_cast<int>(random.Below(5)) - 2 : 0,
              .run_always = op.always,
              .cancel = scope};
  // The scope of the description, or that of the thread.
  if (scope && !inside && random.OneIn(3)) put.desc.cancel = nullptr;
  const auto push = [&] {
    if (asynchronous && (s_.ending != Ending::kWithheld || (random.OneIn(20) && !inside && MayWithhold()))) {
      PushAsync(put);
    } else if (held) {
      PushHeld(put);
    } else if (to_held_ops) {
      PushToHeldOps(put);
    } else if (kind == kTry) {
      PushBody(put, [&](auto&& body) { Attempt(me, op, [&] { return eng_->TryPush(put.desc, std::move(body)); }); });
    } else {
      PushBody(put, [&](auto&& body) {
        Attempt(me, op, [&] {
          eng_->Push(put.desc, std::move(body));
          return true;
        });
      });
    }
  };
  if (scope && !put.desc.cancel) {
    const CancelScope::Entered entered = scope->Enter();
    push();
  } else {
    push();
  }
}

}  // namespace engine::oracle
