// Arena: the shared memory of one exploration of the dependency protocol: Vars, op blocks, groups, and a model of who
// owns what. One run of bytes, as long as the scenario needs.
//
// Freed blocks and groups are poisoned: their pointers lead to a Var and an op that nobody may touch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "check_env.h"
#include "rules.h"
#include "slot_pool.h"

namespace checker {

inline constexpr int kMaxGroups = 10;

struct Model {
  Rules::State rules;
  SlotPool<kMaxOps> blocks;
  SlotPool<kMaxGroups> groups;
  uint8_t block_of[kMaxOps];  // + 1
  uint8_t groups_taken[kMaxOps];
  uint8_t pushing[Explorer::kMaxThreads];    // op + 1 that a thread registers
  uint8_t holder[kMaxVars];                  // thread + 1 that holds the tail
  uint8_t last_tail[Explorer::kMaxThreads];  // Var that a thread touched last, for its spin loop
  bool any_refused;
  uint8_t parts_ended[kMaxOps];  // threads that have ended on their Var
  bool joined[kMaxOps];          // is held in its pusher's bulk
  bool needed[kMaxPushers];      // the bulk of a pusher is, by an op in registration or behind it
  bool completed[kMaxOps];       // is through
};

enum class Kind : uint8_t { kTail, kPushed, kDeleted, kSettled, kBlock, kGroup, kPoison, kNowhere };

struct Place {
  Kind kind;
  int index = 0;
};

template <class D>
class Arena {
 public:
  using Op = typename D::Op;
  using Access = typename D::Access;
  using Group = typename D::Group;
  using Var = typename D::Var;

  explicit Arena(const Scenario& scenario)
      : n_vars_(scenario.vars),
        n_blocks_(static_cast<int>(scenario.ops.size())),
        n_groups_(scenario.reads),
        block_bytes_(RoundUp(sizeof(Op) + scenario.most_accesses * sizeof(Access))),
        vars_at_(RoundUp(sizeof(Model))),
        groups_at_(vars_at_ + sizeof(Var) * n_vars_),
        blocks_at_(groups_at_ + sizeof(Group) * n_groups_),
        bytes_(blocks_at_ + block_bytes_ * n_blocks_),
        base_(static_cast<std::byte*>(std::aligned_alloc(kLine, bytes_))) {
    std::memset(base_, 0, bytes_);
    PoisonOp(&poison_.op);
    PoisonAccess(&poison_.access);
    ::new (base_) Model{};
    for (int i = 0; i < n_vars_; ++i) ::new (base_ + vars_at_ + sizeof(Var) * i) Var;
    for (int i = 0; i < n_blocks_; ++i) PoisonBlock(i);
    for (int i = 0; i < n_groups_; ++i) PoisonGroup(i);
  }
  ~Arena() { std::free(base_); }
  Arena(const Arena&) = delete;

  std::span<std::byte> memory() { return {base_, bytes_}; }
  Model& model() const { return *std::launder(reinterpret_cast<Model*>(base_)); }
  Var* var(int i) const { return reinterpret_cast<Var*>(base_ + vars_at_) + i; }
  Group* group(int i) const { return reinterpret_cast<Group*>(base_ + groups_at_) + i; }
  Op* block(int i) const { return reinterpret_cast<Op*>(base_ + blocks_at_ + block_bytes_ * i); }
  int vars() const { return n_vars_; }
  int blocks() const { return n_blocks_; }
  int groups() const { return n_groups_; }

  // Where a word lies; a pointer into a block or a group counts as its first word.
  Place Find(const void* word) const {
    const auto* p = static_cast<const std::byte*>(word);
    const auto* poison = reinterpret_cast<const std::byte*>(&poison_);
    if (p >= poison && p < poison + sizeof(poison_)) return {Kind::kPoison};
    if (p < base_ + vars_at_ || p >= base_ + bytes_) return {Kind::kNowhere};
    const auto at = static_cast<size_t>(p - base_);
    if (at >= blocks_at_) return {Kind::kBlock, static_cast<int>((at - blocks_at_) / block_bytes_)};
    if (at >= groups_at_) return {Kind::kGroup, static_cast<int>((at - groups_at_) / sizeof(Group))};
    const int i = static_cast<int>((at - vars_at_) / sizeof(Var));
    if (word == var(i)->tail.word()) return {Kind::kTail, i};
    if (word == var(i)->pushed.word()) return {Kind::kPushed, i};
    if (word == var(i)->deleted.word()) return {Kind::kDeleted, i};
    if (word == var(i)->settled.word()) return {Kind::kSettled, i};
    return {Kind::kNowhere};
  }

  // As an op's block comes from the caller; what Register must set is poisoned still.
  Op* FillBlock(int i, const OpSpec& spec, int id) {
    PoisonBlock(i);
    Op* const op = block(i);
    op->extra.id = static_cast<uint32_t>(id);
    op->n_access = static_cast<uint16_t>(spec.accesses.size());
    op->keeps_version = spec.keeps_version;
    op->deletes = spec.deletes;
    for (size_t k = 0; k < spec.accesses.size(); ++k) {
      op->accesses()[k].var = var(spec.accesses[k].var);
      op->accesses()[k].word = static_cast<uint64_t>(spec.accesses[k].mode) | k << 2;
    }
    D::SetPins(op, static_cast<uint32_t>(std::count_if(spec.accesses.begin(), spec.accesses.end(), [](const auto& a) {
                 return a.mode != engine::AccessMode::kRead;
               })));
    return op;
  }
  void PoisonBlock(int i) {
    Op* const op = block(i);
    PoisonOp(op);
    const size_t room = (block_bytes_ - sizeof(Op)) / sizeof(Access);
    for (size_t k = 0; k < room; ++k) PoisonAccess(op->accesses() + k);
    op->n_access = static_cast<uint16_t>(room);  // whoever still goes through the accesses comes to a poisoned one
  }
  void PoisonGroup(int i) {
    group(i)->count.poke(kJunk);
    group(i)->waiters.poke(reinterpret_cast<uintptr_t>(&poison_.access));
    group(i)->successor = &poison_.op;
  }
  Group* FillGroup(int i) {
    Group* const g = ::new (group(i)) Group;
    g->successor = &poison_.op;  // so that a write handed out too early shows
    return g;
  }

 private:
  static constexpr size_t kLine = 64;
  static constexpr uint32_t kJunk = 0xdead;
  static constexpr size_t RoundUp(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

  struct Poison {
    Op op;
    Access access;
    Var var;
  };

  void PoisonOp(Op* op) {
    op->wait.poke(kJunk);
    op->pins.poke(kJunk);
    op->extra.id = kMaxOps;
    op->n_access = 1;
    op->keeps_version = op->deletes = false;
  }
  void PoisonAccess(Access* a) {
    a->link.poke(reinterpret_cast<uintptr_t>(&poison_.access));
    a->var = &poison_.var;
    a->op = &poison_.op;
    a->word = static_cast<uint64_t>(engine::AccessMode::kWrite);
  }

  const int n_vars_;
  const int n_blocks_;
  const int n_groups_;
  const size_t block_bytes_;
  const size_t vars_at_;
  const size_t groups_at_;
  const size_t blocks_at_;
  const size_t bytes_;
  std::byte* const base_;
  static inline Poison poison_{};
};

}  // namespace checker
