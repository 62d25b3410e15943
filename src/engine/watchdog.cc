// Describing what is stuck, and the thread that does so by itself after a time without progress.
#include <cstdio>
#include <map>
#include <sstream>

#include "core.h"
#include "gate.h"

namespace engine::detail {
namespace {

void Put(std::ostream& out, OpRecord* op) {
  out << "'" << (*op->extra.name ? op->extra.name : "unnamed") << "' (" << op->extra.file << ":" << op->extra.line << ")";
}

const char* StateText(OpState state) {
  switch (state) {
    case OpState::kWaiting: return "waits for its Vars";
    case OpState::kReady: return "is ready, not started";
    case OpState::kRunning: return "is running";
    case OpState::kAsync: return "awaits its Completion";
    case OpState::kFree: break;
  }
  return "";
}

}  // namespace

// The gate is closed, so no block is filled while we read. One may end meanwhile: its fields stay readable, and the
// report is then one op too long.
std::string EngineCore::DescribePending() {
  constexpr size_t kMost = 32;
  struct Use {
    std::vector<OpRecord*> owners, waiters;
  };
  std::vector<OpRecord*> pending;
  PushGate::Close(*this);
  ops_.ForEachBlock(kFirstOpClass, [&](void* block) {
    auto* op = static_cast<OpRecord*>(block);
    if (op->extra.state.load(std::memory_order_acquire) != OpState::kFree) pending.push_back(op);
  });
  std::map<Protocol::Var*, Use> uses;
  std::ostringstream out;
  out << pending.size() << " ops are pending (waits included)\n";
  size_t listed = 0;
  for (OpRecord* op : pending) {
    const OpState state = op->extra.state.load(std::memory_order_acquire);
    const bool owns = state != OpState::kWaiting;
    for (uint32_t i = 0; i < op->n_access; ++i) {
      Use& use = uses[op->accesses()[i].var];
      (owns ? use.owners : use.waiters).push_back(op);
    }
    if (!owns || ++listed > kMost) continue;
    out << "  op ";
    Put(out, op);
    out << " " << StateText(state) << "\n";
  }
  if (listed > kMost) out << "  and " << listed - kMost << " more that have started or could\n";
  size_t vars = 0;
  for (auto& [var, use] : uses) {
    if (use.waiters.empty()) continue;
    if (++vars > kMost) continue;
    out << "  Var '" << (*var->pusher.name ? var->pusher.name : "unnamed") << "' version "
        << var->settled.load(std::memory_order_acquire) << " of " << var->pushed.load(std::memory_order_relaxed);
    const auto list = [&](const char* text, const std::vector<OpRecord*>& ops) {
      if (ops.empty()) return;
      out << text;
      for (size_t i = 0; i < ops.size() && i < 4; ++i) {
        if (i) out << ", ";
        Put(out, ops[i]);
      }
      if (ops.size() > 4) out << " and " << ops.size() - 4 << " more";
    };
    list("\n    owned by ", use.owners);
    list("\n    awaited by ", use.waiters);
    out << "\n";
  }
  if (vars > kMost) out << "  and " << vars - kMost << " more blocked Vars\n";
  PushGate::Open(*this);
  return out.str();
}

uint64_t EngineCore::ProgressMark() {
  MutexLock lock(slots_mu_);
  uint64_t mark = 0;
  for (const auto& s : slots_) mark += s->completed[0].Read() + s->completed[1].Read();
  return mark;
}

// Looks four times per timeout; reports once for each stall.
void EngineCore::WatchdogMain() {
  uint64_t last = ProgressMark();
  auto since = Clock::now();
  bool reported = false;
  while (watchdog_stop_.load(std::memory_order_acquire) == 0) {
    FutexWait(watchdog_stop_, 0, Clock::now() + options_.stall_timeout / 4);
    const uint64_t mark = ProgressMark();
    if (mark != last || Pending() == 0) {
      last = mark;
      since = Clock::now();
      reported = false;
      continue;
    }
    if (reported || Clock::now() - since < options_.stall_timeout) continue;
    reported = true;
    const std::string report = "engine: no progress for " + std::to_string(options_.stall_timeout.count()) + " ms; " +
                               DescribePending();
    if (options_.on_stall) {
      try {
        options_.on_stall(report);
      } catch (...) {  // a reporter that throws must not end the process
        std::fprintf(stderr, "engine: on_stall threw\n");
      }
    } else {
      std::fputs(report.c_str(), stderr);
    }
  }
}

}  // namespace engine::detail
