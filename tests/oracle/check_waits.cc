// Waits: when a wait returned, everything that it covers had ended, and it threw the right error. Unseen: somebody saw
// each error.
#include <cinttypes>

#include "verdict.h"

namespace engine::oracle {

void Verdict::Waits() {
  std::map<std::string, const OpRecord*> by_name;
  for (const OpRecord* op : ops_) by_name["o" + std::to_string(op->id)] = op;
  for (const WaitRecord& wait : h_.waits) {
    ++totals_.waits;
    if (wait.run) {
      WaitForRun(wait);
    } else if (wait.var == WaitRecord::kEverything) {
      WaitForAll(wait);
    } else {
      WaitForVar(wait, by_name);
    }
  }
}

void Verdict::WaitForRun(const WaitRecord& wait) {
  const OpRecord& run = *wait.run;
  if (!EndedBy(run, wait.end)) log_.Complain("a wait for run o%u returned before its end", run.id);
  bool failed = false;
  for (const NodeRecord& node : run.nodes) failed |= node.failed;
  if (wait.root < 0 && failed) log_.Complain("a wait for run o%u threw nothing, although a node failed", run.id);
  if (wait.root >= 0 && !of_run_[&run].count(wait.root))
    log_.Complain("a wait for run o%u showed %" PRId64, run.id, wait.root);
}

void Verdict::WaitForAll(const WaitRecord& wait) {
  for (const OpRecord* op : ops_)
    if (!op->is_operator && op->push_end < wait.begin && !EndedBy(*op, wait.end))
      log_.Complain("WaitAll [%" PRIu64 ", %" PRIu64 "] returned before o%u ended (ran %d times until %" PRIu64
                    ", skipped at %" PRIu64 ")",
                    wait.begin, wait.end, op->id, op->runs, op->run_end, op->skip_tick);
}

void Verdict::WaitForVar(const WaitRecord& wait, const std::map<std::string, const OpRecord*>& by_name) {
  const VarHistory& var = vars_[wait.var];
  // The versions at which the wait may stand in the order.
  size_t least = 0, greatest = 0;
  for (size_t k = 1; k <= var.writers.size(); ++k) {
    const OpRecord& writer = *var.writers[k - 1];
    if (!writer.is_operator && writer.push_end < wait.begin) {
      least = k;
      if (EndOf(writer, wait.var) >= wait.end)
        log_.Complain("a wait for v%u returned before o%u ended", wait.var, writer.id);
    }
    if (writer.push_begin < wait.end) greatest = k;
  }
  for (const auto& readers : var.readers)
    for (const OpRecord* reader : readers)
      if (wait.to_write && !reader->is_operator && reader->push_end < wait.begin &&
          EndOf(*reader, wait.var) >= wait.end)
        log_.Complain("WaitToWrite of v%u returned before its reader o%u ended", wait.var, reader->id);
  bool possible = false;
  for (size_t k = least; k <= greatest && !possible; ++k)
    possible = WithClears(wait.var, k, wait.begin, wait.end).count(wait.root);
  if (!possible)
    log_.Complain("a wait for v%u [%" PRIu64 ", %" PRIu64 "] showed %" PRId64 ", versions %zu to %zu", wait.var,
                  wait.begin, wait.end, wait.root, least, greatest);
  constexpr size_t kHops = 16;
  if (wait.path.size() > kHops) log_.Complain("an error came with %zu hops", wait.path.size());
  for (const std::string& hop : wait.path) {
    if (hop[0] != 'o' || hop == "operator") continue;
    const auto it = by_name.find(hop);
    if (it == by_name.end() || it->second->runs)
      log_.Complain("an error came over %s, which was not skipped", hop.c_str());
  }
}

void Verdict::Unseen() {
  size_t lost = 0;
  uint32_t one = 0;
  for (const uint32_t root : roots_) {
    if (h_.shown.count(root)) continue;
    ++lost;
    one = root;
  }
  if (lost > h_.further)
    log_.Complain("%zu errors were never shown, that of %u among them, and %" PRIu64 " counted", lost, one, h_.further);
  for (const uint32_t root : h_.shown)
    if (!roots_.count(root) && !may_show_.count(root))
      log_.Complain("an error of %u was shown, which did not fail", root);
  const bool all_whole = h_.further == 0;
  if (h_.second_calls < h_.second_calls_shown || (all_whole && h_.second_calls_in_time > h_.second_calls_shown))
    log_.Complain("%" PRIu64 " second calls of completions were reported, %" PRIu64 " made, of them %" PRIu64
                  " before the engine's end began",
                  h_.second_calls_shown, h_.second_calls, h_.second_calls_in_time);
}

}  // namespace engine::oracle
