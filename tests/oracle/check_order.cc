// Order: each version has one writer, and a serial order of all ops exists.
#include <algorithm>
#include <cinttypes>
#include <deque>

#include "verdict.h"

namespace engine::oracle {

bool Verdict::Versions() {
  constexpr uint64_t kSenseless = 2'000'000;
  std::vector<uint64_t> latest(h_.values.size(), 0);
  for (const OpRecord* op : ops_) {
    for (const Use& use : op->uses) {
      if (use.version > kSenseless || (use.mode != AccessMode::kRead && use.version == 0)) {
        log_.Complain("o%u: has version %" PRIu64 " of v%u", op->id, use.version, use.var);
        return false;
      }
      latest[use.var] = std::max(latest[use.var], use.version);
    }
  }
  vars_.resize(latest.size());
  for (size_t v = 0; v < vars_.size(); ++v) {
    vars_[v].writers.assign(latest[v], nullptr);
    vars_[v].readers.resize(latest[v] + 1);
  }
  for (OpRecord* op : ops_) {
    for (const Use& use : op->uses) {
      VarHistory& var = vars_[use.var];
      if (use.mode == AccessMode::kRead) {
        var.readers[use.version].push_back(op);
        continue;
      }
      OpRecord*& writer = var.writers[use.version - 1];
      if (writer) {
        log_.Complain("v%u: version %" PRIu64 " was made by o%u and by o%u", use.var, use.version, writer->id, op->id);
        return false;
      }
      writer = op;
    }
  }
  for (size_t v = 0; v < vars_.size(); ++v) {
    const auto& writers = vars_[v].writers;
    const auto gap = std::find(writers.begin(), writers.end(), nullptr);
    if (gap != writers.end()) {
      log_.Complain("v%zu: nobody made version %td of %zu", v, gap - writers.begin() + 1, writers.size());
      return false;
    }
    if (v < h_.versions.size() && h_.versions[v] != writers.size())
      log_.Complain("v%zu: ends with version %" PRIu64 " after %zu writes", v, h_.versions[v], writers.size());
  }
  return true;
}

// For each Var: the writer, then its readers, then the next writer. There must be no cycle.
bool Verdict::SerialOrder() {
  std::vector<std::vector<OpRecord*>> after(ops_.size());
  std::vector<uint32_t> before(ops_.size(), 0);
  const auto edge = [&](OpRecord* a, OpRecord* b) {
    if (a == b) return;
    after[a->index].push_back(b);
    ++before[b->index];
  };
  for (const VarHistory& var : vars_) {
    for (size_t k = 0; k <= var.writers.size(); ++k) {
      OpRecord* const writer = k > 0 ? var.writers[k - 1] : nullptr;
      OpRecord* const next = k < var.writers.size() ? var.writers[k] : nullptr;
      for (OpRecord* reader : var.readers[k]) {
        if (writer) edge(writer, reader);
        if (next) edge(reader, next);
      }
      if (writer && next) edge(writer, next);
    }
  }
  std::deque<OpRecord*> free;
  for (OpRecord* op : ops_)
    if (before[op->index] == 0) free.push_back(op);
  while (!free.empty()) {
    OpRecord* const op = free.front();
    free.pop_front();
    order_.push_back(op);
    for (OpRecord* next : after[op->index])
      if (--before[next->index] == 0) free.push_back(next);
  }
  if (order_.size() == ops_.size()) return true;
  for (const OpRecord* op : ops_) {
    if (before[op->index] == 0) continue;
    log_.Complain("%zu ops of %zu are on cycles, o%u among them", ops_.size() - order_.size(), ops_.size(), op->id);
    break;
  }
  return false;
}

}  // namespace engine::oracle
