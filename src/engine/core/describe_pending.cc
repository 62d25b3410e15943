// DescribePending: says which ops are pending and why, for EngineOptions::on_stall and for callers.
#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include "core/core.h"

namespace engine::detail {
namespace {

struct PendingOp {
  const char* name;
  Site site;
  OpState state;
  OpKindId kind;
  bool held;
  std::vector<Protocol::Var*> vars;
};

void Put(std::ostream& out, const PendingOp& op) {
  out << "'" << (*op.name ? op.name : "unnamed") << "' (" << op.site.file << ":" << op.site.line
      << (op.held && op.state == OpState::kWaiting
              ? ", pushed by PushHeld: it waits for its HeldOp's release, or for its Vars)"
              : ")");
}

// Copies what the block, which is of class `cls`, says of its op. False: the block had no pending op at the first look or
// at the last. While the gate is closed no op becomes pending. An op may end meanwhile, and its block be poisoned, or
// filled for a push that waits at the gate, but then its state is kFree at the last look and the copy is not used. So
// nothing may depend on what is read between the looks. (Formally a data race, as in a sequence lock.)
bool CopyPending(OpRecord* op, uint32_t cls, PendingOp* copy) {
  copy->state = op->extra.state.load(std::memory_order_acquire);
  if (copy->state == OpState::kFree) return false;
  copy->name = op->extra.name;
  copy->kind = op->extra.kind;
  copy->site = op->site();
  copy->held = op->extra.flags & kHeldBack;
  Jitter();
  const size_t room = (BlockBytes(cls) - sizeof(OpRecord)) / sizeof(Access);
  const size_t n = std::min<size_t>(op->n_access, room);
  copy->vars.clear();
  for (size_t i = 0; i < n; ++i) copy->vars.push_back(op->accesses()[i].var);
  std::atomic_thread_fence(std::memory_order_acquire);
  return op->extra.state.load(std::memory_order_relaxed) != OpState::kFree;
}

const char* StateText(OpState state) {
  switch (state) {
    case OpState::kWaiting: return "waits for its Vars";
    case OpState::kReady: return "is ready, not started";
    case OpState::kRunning: return "is running";
    case OpState::kAsync: return "awaits its Completion";
    case OpState::kBehindDevice: return "waits for work on a device to end";
    case OpState::kIssued: return "is issued to a device, and has not ended there";
    case OpState::kFree: break;
  }
  return "";
}

}  // namespace

// A Var may be gone before it is printed. That is safe: its memory stays the memory of a Var.
std::string EngineCore::DescribePending() {
  constexpr size_t kMost = 32;
  struct Use {
    std::vector<const PendingOp*> owners, waiters;
  };
  std::vector<PendingOp> pending;
  gate_.Close(slots_);
  PendingOp copy;
  try {
    ops_.ForEachBlock(kFirstOpClass, kEndOfClasses, [&](void* block, uint32_t cls) {
      if (CopyPending(static_cast<OpRecord*>(block), cls, &copy)) pending.push_back(copy);
    });
  } catch (...) {  // there is no memory: the gate must not stay closed
    gate_.Open();
    throw;
  }
  gate_.Open();
  std::map<Protocol::Var*, Use> uses;
  std::ostringstream out;
  // Not counted as ops: gates (kGate), by which a run has or awaits one Var, and shares (kShare), which carry tasks of
  // a run.
  const auto is_op = [](const PendingOp& op) { return op.kind != OpKindId::kGate && op.kind != OpKindId::kShare; };
  out << std::ranges::count_if(pending, is_op) << " ops are pending (waits included)\n";
  size_t listed = 0;
  for (const PendingOp& op : pending) {
    const bool owns = op.state != OpState::kWaiting;
    for (Protocol::Var* var : op.vars) {
      Use& use = uses[var];
      (owns ? use.owners : use.waiters).push_back(&op);
    }
    if (!owns || !is_op(op) || ++listed > kMost) continue;
    out << "  op ";
    Put(out, op);
    out << " " << StateText(op.state) << "\n";
  }
  if (listed > kMost) out << "  and " << listed - kMost << " more that have started or could\n";
  size_t vars = 0;
  for (auto& [var, use] : uses) {
    if (use.waiters.empty()) continue;
    if (++vars > kMost) continue;
    out << "  Var '" << (*var->pusher.name ? var->pusher.name : "unnamed") << "' version "
        << var->settled.load(std::memory_order_acquire) << " of " << var->pushed.load(std::memory_order_relaxed);
    const auto list = [&](const char* text, const std::vector<const PendingOp*>& ops) {
      if (ops.empty()) return;
      out << text;
      for (size_t i = 0; i < ops.size() && i < 4; ++i) {
        if (i) out << ", ";
        Put(out, *ops[i]);
      }
      if (ops.size() > 4) out << " and " << ops.size() - 4 << " more";
    };
    list("\n    owned by ", use.owners);
    list("\n    awaited by ", use.waiters);
    out << "\n";
  }
  if (vars > kMost) out << "  and " << vars - kMost << " more blocked Vars\n";
  return out.str();
}

}  // namespace engine::detail
