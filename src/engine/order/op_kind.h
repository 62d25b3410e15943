// OpKind: what is special about an op that is no program's plain one: how it runs, whose it is, and what its layer is told.
//
// The core and the devices ask the table and name no layer above them. A layer fills in its kinds when the library is
// loaded; what a kind leaves out is done as for a plain op.
//
// Threads: the table does not change once the library is loaded.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "order/op_record.h"

namespace engine::detail {

class EngineCore;
struct Worker;

struct OpKind {
  // Runs the op in place of a body; as EngineCore::Execute. For ops with kOwnWay.
  OpRecord* (*execute)(EngineCore&, ThreadSlot&, OpRecord*, Worker*) = nullptr;
  // Does the op wherever its last access is granted. For ops with kInternal.
  void (*when_granted)(EngineCore&, Pass&, OpRecord*) = nullptr;
  // The op's Completion was called. Consumes the error's count.
  void (*when_completed)(EngineCore&, OpRecord*, ErrorRecord*) = nullptr;
  // The op whose Vars and cancel scope are this one's too: of a part of a run, the run.
  OpRecord* (*owner)(OpRecord*) = nullptr;
  // This process is a fork's child, which goes on inside the op: it must touch no Var.
  void (*orphan)(OpRecord*) = nullptr;

  // Of an op on a device: it was issued (its Vars' points are set); it was refused before that; it failed after that. The
  // last two consume the error's count.
  void (*issued)(EngineCore&, ThreadSlot&, OpRecord*) = nullptr;
  void (*refused)(EngineCore&, ThreadSlot&, OpRecord*, ErrorRecord*) = nullptr;
  void (*failed)(EngineCore&, ThreadSlot&, OpRecord*, ErrorRecord*) = nullptr;
  // Calls fn(to, var, mode) for each Var whose order the op keeps besides those of its accesses: those of its owner.
  void (*for_vars)(OpRecord*, void* to, void (*fn)(void* to, VarCore* var, Mode mode)) = nullptr;
  // Device work on the access of that number need not have retired when the op starts on the host.
  bool (*ordered_there)(OpRecord*, uint32_t access) = nullptr;
  // Says that somebody waits for what comes behind the op; null: somebody always does.
  const std::atomic<bool>* (*asked_for)(OpRecord*) = nullptr;
};

enum class OpKindId : uint8_t {
  kPlain,
  kWait,    // signals a WaitNode
  kClear,   // clears the poison of its Var
  kDelete,  // ends its Var, in which it is embedded
  kRun,     // a run of a plan, on all its Vars
  kShare,   // ready tasks of a run, handed to a worker; touches no Var
  kTicket,  // a node or task of a run that ends elsewhere; touches no Var
  kNode,    // a node of a run, on a device; its Vars are the run's
  kSettle,  // behind nodes on a device: settles them
};
inline constinit OpKind g_op_kinds[9]{};

inline const OpKind& KindOf(const OpRecord* op) { return g_op_kinds[static_cast<uint8_t>(op->extra.kind)]; }

// For the static initialization of a layer.
struct OpKindEntry {
  OpKindEntry(OpKindId id, const OpKind& kind) { g_op_kinds[static_cast<uint8_t>(id)] = kind; }
};

// Every Var that the op's owner names for it: fn(VarCore*, Mode).
template <class Fn>
void ForOwnersVars(OpRecord* op, Fn&& fn) {
  if (const auto for_vars = KindOf(op).for_vars)
    for_vars(op, const_cast<void*>(static_cast<const void*>(&fn)),
             [](void* to, VarCore* var, Mode mode) { (*static_cast<std::remove_reference_t<Fn>*>(to))(var, mode); });
}
// Every Var whose order the op keeps, those of its owner first.
template <class Fn>
void ForOrderedVars(OpRecord* op, Fn&& fn) {
  ForOwnersVars(op, fn);
  for (uint32_t i = 0; i < op->n_access; ++i) fn(CoreOf(op->accesses()[i].var), op->accesses()[i].mode());
}

}  // namespace engine::detail
