// OpKind: what is special about ops that no program pushed as plain ops: how they run, whose Vars they use, and which
// events their layer wants to know.
//
// The core and the devices ask this table, and name no layer above them. A layer enters its kinds when the library is
// loaded. An entry that a kind leaves null means: as for a plain op.
//
// Threads: the table does not change after the library is loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "order/op_record.h"

namespace engine::detail {

class EngineCore;
struct KeptGraph;
struct Worker;

struct OpKind {
  // For ops with kOwnWay: runs the op, which has no body. Parameters and result are those of EngineCore::Execute.
  OpRecord* (*execute)(EngineCore&, ThreadSlot&, OpRecord*, Worker*) = nullptr;
  // For ops with kInternal: does the op, on the thread that grants its last access.
  void (*when_granted)(EngineCore&, Pass&, OpRecord*) = nullptr;
  // The op's Completion was called. Takes over the caller's count of the error.
  void (*when_completed)(EngineCore&, OpRecord*, ErrorRecord*) = nullptr;
  // The op whose Vars and cancel scope this op uses too: a part of a run returns the run.
  OpRecord* (*owner)(OpRecord*) = nullptr;
  // This process is a fork's child that goes on inside the op's body: the op must not touch any Var.
  void (*orphan)(OpRecord*) = nullptr;

  // ParallelFor in a body that this kind runs. False: as in a plain op.
  bool (*wide_for)(RunContext&, size_t n, size_t grain, const std::function<void(size_t, size_t)>& piece) = nullptr;

  // Events of an op on a device. issued: it was issued, and its Vars' points are set. refused: it was refused before
  // that. failed: it failed after that. The last two take over the caller's count of the error.
  void (*issued)(EngineCore&, ThreadSlot&, OpRecord*) = nullptr;
  void (*refused)(EngineCore&, ThreadSlot&, OpRecord*, ErrorRecord*) = nullptr;
  void (*failed)(EngineCore&, ThreadSlot&, OpRecord*, ErrorRecord*) = nullptr;
  // A chain that begins with this op, of so many members, has been launched as a graph, which the device keeps.
  void (*launched)(OpRecord* head, uint64_t members, const KeptGraph& graph) = nullptr;
  // For an op on a device that stands for a whole chain: the graph that is to be launched instead of its body, or null
  // if the body has to run this time. A caller that finds that the device has dropped that graph clears it.
  KeptGraph* (*kept_graph)(EngineCore&, OpRecord*) = nullptr;
  // Writes what the op stands for into the trace, where a graph was launched instead of its body; null: its own name.
  void (*trace)(EngineCore&, OpRecord*, const char* lane) = nullptr;
  // Calls fn(to, var, mode) for each Var whose order the op keeps for its owner, besides those of its own accesses.
  void (*for_vars)(OpRecord*, void* to, void (*fn)(void* to, VarCore* var, AccessMode mode)) = nullptr;
  // Whether this access of an op on the host is ordered on the device: then device work on its Var need not have
  // retired when the op starts.
  bool (*ordered_there)(OpRecord*, uint32_t access) = nullptr;
  // The op's access of a Var that lies in another op's block; null: there is none.
  Access* (*access_elsewhere)(OpRecord*, const VarCore*) = nullptr;
  // Returns a flag that is set once somebody waits for what comes behind the op; null: somebody always does.
  const std::atomic<bool>* (*asked_for)(OpRecord*) = nullptr;
};

enum class OpKindId : uint8_t {
  kPlain,
  kWait,     // wakes the thread that waits on a WaitNode
  kClear,    // clears the poison of its Var
  kDelete,   // ends its Var, in whose block it lies
  kRun,      // a run of a plan; its accesses are all the run's Vars
  kShare,    // ready tasks of a run for another worker; names no Var
  kTicket,   // a node or task of a run that ends by a Completion or on another thread; names no Var
  kNode,     // a node of a run, on a device; its Vars are its run's
  kSettle,   // behind nodes on a device: settles them on the host
  kSegment,  // all nodes of a task on a device, which is a graph there
  kGate,     // one Var of a run that was not free when the run started (graph/gates.h)
};
inline constinit OpKind g_op_kinds[11]{};

inline const OpKind& KindOf(const OpRecord* op) { return g_op_kinds[static_cast<uint8_t>(op->extra.kind)]; }

// Enters a kind into the table, as a static object of its layer.
struct OpKindEntry {
  OpKindEntry(OpKindId id, const OpKind& kind) { g_op_kinds[static_cast<uint8_t>(id)] = kind; }
};

// Calls fn(VarCore*, AccessMode) for each Var that the op uses for its owner.
template <class Fn>
void ForOwnersVars(OpRecord* op, Fn&& fn) {
  if (const auto for_vars = KindOf(op).for_vars)
    for_vars(op, const_cast<void*>(static_cast<const void*>(&fn)), [](void* to, VarCore* var, AccessMode mode) {
      (*static_cast<std::remove_reference_t<Fn>*>(to))(var, mode);
    });
}
// Calls fn(VarCore*, AccessMode) for each Var whose order the op keeps, those of its owner first.
template <class Fn>
void ForOrderedVars(OpRecord* op, Fn&& fn) {
  ForOwnersVars(op, fn);
  for (uint32_t i = 0; i < op->n_access; ++i) fn(CoreOf(op->accesses()[i].var), op->accesses()[i].mode());
}

}  // namespace engine::detail
