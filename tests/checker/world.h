// World: a scenario under the dependency protocol, as a program for the explorer. Pushers register ops; an op that
// becomes ready is completed by a thread of its own. Watches accesses for stale pointers, and moments for the Rules.
//
// Scheduling points: every access to a word that another thread may touch at that moment. Not: accesses to a block
// or group that is still private to its thread; words that only the holder of the tail touches (checked); `settled`
// and `pushed` where the scenario has no look at Settled. An op's run needs no points of its own: it begins as soon,
// and ends as late, as the protocol's own steps allow. What follows an access without being atomic belongs to its
// step, unless the scenario is `fine`.
#pragma once

#include <string>

#include "leftovers.h"
#include "names.h"

namespace checker {

template <engine::detail::Mutant M>
class World final : public Program, private Host {
  using D = engine::detail::Dependency<CheckEnv<M>>;
  using Op = typename D::Op;
  using Var = typename D::Var;
  using Group = typename D::Group;

 public:
  explicit World(const Scenario& scenario)
      : scenario_(scenario), arena_(scenario), model_(arena_.model()), rules_(scenario, model_.rules) {
    Host::current = this;
  }
  ~World() { Host::current = nullptr; }

  std::span<std::byte> memory() override { return arena_.memory(); }

  void Begin() override {
    for (size_t p = 0; p < scenario_.pushers.size(); ++p)
      explorer().Start(explorer().AddThread("pusher" + std::to_string(p), [this, p] { PusherMain(p); }));
    for (size_t id = 0; id < scenario_.ops.size(); ++id) {
      const OpSpec& spec = scenario_.ops[id];
      const int op = static_cast<int>(id);
      const std::string name = "op" + std::to_string(id);
      completer_[id] = explorer().AddThread(name + "'s completer", [this, op] { CompleterMain(op, true); });
      if (spec.async) body_[id] = explorer().AddThread(name + "'s body", [this, op] { BodyMain(op); });
      if (spec.held || spec.bulk)
        releaser_[id] = explorer().AddThread(name + "'s releaser", [this, op] { ReleaserMain(op); });
      for (size_t a = 0; spec.parts && a < spec.accesses.size(); ++a)
        part_[id][a] = explorer().AddThread(name + "'s part with " + VarName(spec.accesses[a].var),
                                            [this, op, a] { PartMain(op, a); });
      if (spec.twice) second_[id] = explorer().AddThread(name + " again", [this, op] { CompleterMain(op, false); });
    }
  }

  const char* AtRest() override {
    // What nobody needs may stay held, and only that and deletions behind it: nobody waits for these.
    bool any_held = false;
    for (const bool joined : model_.joined) any_held |= joined;
    uint8_t held = 0;
    for (size_t k = 0; k < scenario_.ops.size(); ++k)
      held |= static_cast<uint8_t>(uint32_t{model_.joined[k] || (any_held && scenario_.ops[k].deletes)} << k);
    if (const char* broken = rules_.AtRest(held)) return broken;
    if (held) return nullptr;
    return CheckLeftovers<D>(arena_);
  }

  void BeforeAccess(const void* word, AccessKind kind, uint64_t desired) override {
    const Place place = arena_.Find(word);
    switch (place.kind) {
      case Kind::kTail: return BeforeTail(place.index, kind, desired);
      case Kind::kPushed: return BeforePushed(place.index, kind);
      case Kind::kDeleted:
        if (!Holds(place.index)) Fail("`deleted` was touched without holding the tail");
        return;
      case Kind::kSettled:
        if (scenario_.looks_settled) explorer().Point();
        return;
      case Kind::kBlock:
        if (!model_.blocks.private_to(place.index, self())) explorer().Point();
        if (!model_.blocks.MayTouch(place.index, self())) Fail("use after free: an op's block");
        return;
      case Kind::kGroup:
        if (!model_.groups.private_to(place.index, self())) explorer().Point();
        if (!model_.groups.MayTouch(place.index, self())) Fail("use after free: a group");
        return;
      case Kind::kPoison: Fail("use after free: a pointer out of a freed block or group");
      case Kind::kNowhere: Fail("a wild pointer");
    }
  }

  void AfterAccess(const void* word, AccessKind kind, uint64_t before, uint64_t after) override {
    const Place place = arena_.Find(word);
    if (place.kind == Kind::kTail) {
      if (after == D::kLocked && before != D::kLocked) model_.holder[place.index] = static_cast<uint8_t>(self() + 1);
      if (kind == AccessKind::kStore) model_.holder[place.index] = 0;
    }
    if (IsPrivate(word)) return;
    if (kind != AccessKind::kLoad && IsPrivate(reinterpret_cast<const void*>(after & ~uint64_t{D::kBits})))
      PublishMine();
    if (scenario_.fine) explorer().Point();
  }

  uint64_t Tag() const override { return OwnersOf(model_); }
  std::string NameOf(const Event& e) const override {
    const Names<D> names(arena_, scenario_);
    if (!e.remark) return names.Word(e);
    if (e.before < kMaxOps) return names.Op(e.before) + " " + e.remark;
    return std::string("Settled(") + VarName(static_cast<int>(e.before - kMaxOps)) + ") " + e.remark;
  }
  std::string ValueOf(const Event& e, uint64_t value) const override {
    return Names<D>(arena_, scenario_).Value(e, value);
  }

 private:
  static Explorer& explorer() { return Explorer::current(); }
  static int self() { return explorer().running(); }
  [[noreturn]] static void Fail(const char* rule) { explorer().Fail(rule); }
  static void Keep(const char* broken) {
    if (broken) Fail(broken);
  }
  bool Holds(int var) const { return model_.holder[var] == self() + 1; }

  // --- accesses

  void BeforeTail(int var, AccessKind kind, uint64_t desired) {
    model_.last_tail[self()] = static_cast<uint8_t>(var);
    if (kind == AccessKind::kExchange && desired == D::kLocked && !scenario_.spins) {
      // An exchange that finds kLocked changes nothing: the thread might as well not have run.
      explorer().PointWhile(arena_.var(var)->tail.word(), D::kLocked);
    } else {
      explorer().Point();
    }
    if (kind == AccessKind::kStore && !Holds(var)) Fail("a tail was stored by a thread that does not hold it");
  }

  void BeforePushed(int var, AccessKind kind) {
    if (!Holds(var)) {
      if (kind != AccessKind::kLoad) Fail("`pushed` was changed without holding the tail");
      return explorer().Point();
    }
    if (kind == AccessKind::kLoad) {
      // The first thing that a push does with a Var that it holds and will not give up any more.
      int op = model_.pushing[self()] - 1;
      while (!scenario_.ops[op].Find(var)) ++op;  // one of those that are registered with it
      if (!(model_.rules.op[op].entered >> var & 1)) Keep(rules_.Entered(op, var));
    } else if (scenario_.looks_settled) {
      explorer().Point();
    }
  }

  bool IsPrivate(const void* p) const {
    const Place place = arena_.Find(p);
    if (place.kind == Kind::kBlock) return model_.blocks.private_to(place.index, self());
    if (place.kind == Kind::kGroup) return model_.groups.private_to(place.index, self());
    return false;
  }
  void PublishMine() {
    model_.blocks.PublishAllOf(self());
    model_.groups.PublishAllOf(self());
  }

  // --- threads

  void PusherMain(size_t pusher) {
    for (const Item& item : scenario_.pushers[pusher]) {
      if (item.kind == Item::kPush) {
        PushOne(pusher, item.index);
      } else {
        explorer().Pause();
        const bool settled = D::Settled(arena_.var(item.index));
        explorer().Remark(settled ? "is true" : "is false", static_cast<uint64_t>(kMaxOps + item.index));
        Keep(rules_.LookedSettled(item.index, settled));
      }
    }
  }

  void PushOne(size_t pusher, int id) {
    if (scenario_.LastOf(id) != id) return PushTogether(pusher, id, scenario_.LastOf(id));
    const OpSpec& spec = scenario_.ops[id];
    // The call, the taking of a block and the first lock are one step: nothing that others do in between can differ.
    if (spec.accesses.empty() || scenario_.spins) {
      explorer().Pause();
    } else {
      explorer().PauseWhile(arena_.var(spec.accesses[0].var)->tail.word(), D::kLocked);
    }
    const int slot = model_.blocks.Take(id, id, self());
    Op* const op = arena_.FillBlock(slot, spec, id);
    model_.block_of[id] = static_cast<uint8_t>(slot + 1);
    explorer().Remark("is pushed", static_cast<uint64_t>(id));
    rules_.Called(id);
    if (spec.early) {
      PublishMine();
      explorer().Start(releaser_[id]);
    }

    typename CheckEnv<M>::Ctx ctx;
    typename D::Access* refused = nullptr;
    model_.pushing[pusher] = static_cast<uint8_t>(id + 1);
    const auto result = D::Register(ctx, op, spec.held || spec.bulk ? 1 : 0, &refused);
    model_.pushing[pusher] = 0;

    if (result == D::Result::kDeletedVar) {
      explorer().Remark("is refused", static_cast<uint64_t>(id));
      const int var = scenario_.ops[id].accesses[static_cast<size_t>(refused - op->accesses())].var;
      Keep(rules_.Refused(id, var));
      for (const uint8_t holder : model_.holder)
        if (holder == self() + 1) Fail("a refused push kept a tail locked");
      model_.any_refused = true;
      FreeBlock(slot);
      return;
    }
    explorer().Remark(result == D::Result::kReady ? "is registered, and ready" : "is registered",
                      static_cast<uint64_t>(id));
    Keep(rules_.Returned(id));
    if (result == D::Result::kReady) {
      if (spec.held || spec.bulk) Fail("a held op was started by its push");
      PublishMine();
      NoteReady(op);
      spec.here ? CompleterMain(id, true) : StartReady(id);
    }
    if (spec.held || spec.bulk) PublishMine();
    if (spec.held && !spec.early) explorer().Start(releaser_[id]);
    if (spec.bulk) model_.joined[id] = true;
    ReleaseNeeded();
  }

  // The first is the run's op, the others are its gates.
  void PushTogether(size_t pusher, int first, int last) {
    typename D::Access* of_var[kMaxVars] = {};
    int slots[kMaxOps] = {};
    int lowest = kMaxVars;
    for (int id = first; id <= last; ++id)
      for (const AccessSpec& access : scenario_.ops[id].accesses) lowest = std::min(lowest, access.var);
    if (scenario_.spins) {
      explorer().Pause();
    } else {
      explorer().PauseWhile(arena_.var(lowest)->tail.word(), D::kLocked);
    }
    for (int id = first; id <= last; ++id) {
      const OpSpec& spec = scenario_.ops[id];
      slots[id] = model_.blocks.Take(id, id, self());
      Op* const op = arena_.FillBlock(slots[id], spec, id);
      model_.block_of[id] = static_cast<uint8_t>(slots[id] + 1);
      for (size_t i = 0; i < spec.accesses.size(); ++i) {
        op->accesses()[i].op = op;
        of_var[spec.accesses[i].var] = op->accesses() + i;
      }
      explorer().Remark("is pushed, with those that belong to it", static_cast<uint64_t>(id));
      rules_.Called(id);
    }
    typename D::Access* list[kMaxVars] = {};
    uint32_t n = 0;
    for (auto* const access : of_var)
      if (access) list[n++] = access;
    typename CheckEnv<M>::Ctx ctx;
    typename D::Access* refused = nullptr;
    model_.pushing[pusher] = static_cast<uint8_t>(first + 1);
    const auto result = D::RegisterTogether(ctx, BlockOf(first), list, n, &refused);
    model_.pushing[pusher] = 0;
    if (result == D::Result::kDeletedVar) {
      const auto var = static_cast<int>(refused->var - arena_.var(0));
      for (int id = first; id <= last; ++id) {
        explorer().Remark("is refused", static_cast<uint64_t>(id));
        Keep(rules_.Refused(id, var));
        FreeBlock(slots[id]);
      }
      for (const uint8_t holder : model_.holder)
        if (holder == self() + 1) Fail("a refused push kept a tail locked");
      model_.any_refused = true;
      return;
    }
    for (int id = first; id <= last; ++id) {
      explorer().Remark("is registered", static_cast<uint64_t>(id));
      Keep(rules_.Returned(id));
    }
    if (result == D::Result::kReady) {
      NoteReady(BlockOf(first));
      StartReady(first);
    }
    PublishMine();
  }

  // Members of a bulk that was needed once are released as they come, as a chain is that was released in between; not while
  // one registers: a chain's lock is held for that, and whoever registers it releases them then.
  void ReleaseNeeded() {
    for (size_t k = 0; k < scenario_.ops.size(); ++k) {
      const int owner = scenario_.ops[k].pusher;
      if (!model_.joined[k] || !model_.needed[owner]) continue;
      if (const uint8_t op = model_.pushing[owner]; op && scenario_.ops[op - 1].bulk) continue;
      model_.joined[k] = false;
      explorer().Start(releaser_[k]);
    }
  }

  void CompleterMain(int id, bool first) {
    if (const auto inner = static_cast<size_t>(id) + 1; inner < scenario_.ops.size() && scenario_.ops[inner].inner) {
      PushOne(static_cast<size_t>(self()), static_cast<int>(inner));
      explorer().PauseWhile(&model_.completed[inner], false);
    }
    if (first) {
      explorer().Remark("ends", static_cast<uint64_t>(id));
      Keep(rules_.Ended(id));
    }
    typename CheckEnv<M>::Ctx ctx;
    if (!D::CompleteSoleWrite(ctx, BlockOf(id))) D::Complete(ctx, BlockOf(id));
    model_.completed[id] = true;
  }
  // One of several threads that end a run's last uses; the last of them ends the run.
  void PartMain(int id, size_t access) {
    const OpSpec& spec = scenario_.ops[id];
    explorer().Pause();
    explorer().Remark("ends on a Var", static_cast<uint64_t>(id));
    Keep(rules_.EndedOn(id, spec.accesses[access].var));
    typename CheckEnv<M>::Ctx ctx;
    D::CompleteOne(ctx, BlockOf(id), BlockOf(id)->accesses()[access]);
    explorer().Pause();
    if (++model_.parts_ended[id] == spec.accesses.size() && !spec.unpinned) D::DropPins(ctx, BlockOf(id), 1);
  }
  void BodyMain(int id) {
    typename CheckEnv<M>::Ctx ctx;
    D::DropPins(ctx, BlockOf(id), 1);
  }
  void ReleaserMain(int id) {
    typename CheckEnv<M>::Ctx ctx;
    D::ReleaseBias(ctx, BlockOf(id));
  }

  Op* BlockOf(int id) { return arena_.block(model_.block_of[id] - 1); }

  void BecomeReady(Op* op) {
    NoteReady(op);
    StartReady(static_cast<int>(op->extra.id));
  }
  void NoteReady(Op* op) {
    const uint32_t id = op->extra.id;
    if (id >= scenario_.ops.size()) Fail("use after free: a freed op became ready");
    uint64_t versions[kMaxVars] = {};
    for (size_t i = 0; i < scenario_.ops[id].accesses.size(); ++i) versions[i] = op->accesses()[i].version();
    Keep(rules_.Ready(static_cast<int>(id), versions));
  }
  void StartReady(int id) {
    if (scenario_.ops[id].parts) {
      for (size_t a = 0; a < scenario_.ops[id].accesses.size(); ++a) explorer().Start(part_[id][a]);
      return;
    }
    for (const int thread : {completer_[id], body_[id], second_[id]})
      if (thread) explorer().Start(thread);
  }

  // --- Host

  void OnReady(void* op) override {
    const uint32_t id = static_cast<Op*>(op)->extra.id;
    if (id < scenario_.ops.size()) explorer().Remark("is ready", id);
    BecomeReady(static_cast<Op*>(op));
  }
  void Recycle(void* op) override {
    const Place place = arena_.Find(op);
    if (place.kind != Kind::kBlock || !model_.blocks.MayTouch(place.index, self())) Fail("a block was recycled twice");
    const int id = model_.blocks.owner(place.index);
    explorer().Remark("is recycled", static_cast<uint64_t>(id));
    if (!model_.rules.op[id].ended) Fail("an op was recycled before it ended");
    FreeBlock(place.index);
  }
  void FreeBlock(int slot) {
    model_.blocks.Free(slot);
    arena_.PoisonBlock(slot);
  }
  void* TakeGroup() override {
    const int op = model_.pushing[self()] - 1;
    int home = model_.groups_taken[op]++;
    for (int k = 0; k < op; ++k)
      for (const AccessSpec& access : scenario_.ops[k].accesses) home += access.read();
    return arena_.FillGroup(model_.groups.Take(home, op, self()));
  }
  void DropGroup(void* group) override {
    const Place place = arena_.Find(group);
    if (place.kind != Kind::kGroup || !model_.groups.MayTouch(place.index, self())) Fail("a group was dropped twice");
    model_.groups.Free(place.index);
    arena_.PoisonGroup(place.index);
  }
  uint32_t ExtraPins(const void* op) override {
    const OpSpec& spec = scenario_.ops[static_cast<const Op*>(op)->extra.id];
    return spec.async || (spec.parts && !spec.unpinned) ? 1 : 0;
  }
  // A bulk has the address of a byte of its own.
  void* Holder(const void* op) override {
    const uint32_t id = static_cast<const Op*>(op)->extra.id;
    if (id >= scenario_.ops.size()) Fail("use after free: who holds a freed op was asked");
    return scenario_.ops[id].bulk ? &model_.needed[scenario_.ops[id].pusher] : nullptr;
  }
  bool Holds(void* holder) override { return !*static_cast<bool*>(holder); }
  void MustRelease(void* holder) override {
    if (holder == D::kSeveral) {
      for (bool& needed : model_.needed) needed = true;
    } else {
      *static_cast<bool*>(holder) = true;
    }
  }
  void SpinOnLock() override { explorer().PauseWhile(arena_.var(model_.last_tail[self()])->tail.word(), D::kLocked); }

  const Scenario& scenario_;
  Arena<D> arena_;
  Model& model_;
  Rules rules_;
  // Thread numbers; 0, which is a pusher, where there is none.
  int completer_[kMaxOps] = {};
  int body_[kMaxOps] = {};
  int releaser_[kMaxOps] = {};
  int second_[kMaxOps] = {};
  int part_[kMaxOps][kMaxVars] = {};
};

}  // namespace checker
