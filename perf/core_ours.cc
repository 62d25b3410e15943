// This engine on the cases of peers/, and what one thread alone needs for an op.
// Threads:   `workers` of the engine's own; the pushing thread is not one of them.
// Variants: "" the defaults. "naive": each op runs inside its push. "unbounded": without the soft bound on pending ops,
// at which a push waits while the gate of bytes_pending is shut. "bulk15": pushes in bulks of 15.
#include <engine/bulk.h>
#include <engine/engine.h>
#include <pthread.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "peers/runner.h"
#include "task_bench.h"

namespace {

using namespace perf;

engine::EngineOptions Options(const Config& config) {
  engine::EngineOptions options;
  options.workers = config.workers;
  if (config.variant == "unbounded") options.max_pending = options.hard_max_pending;
  if (config.variant == "naive") options.policy = engine::Policy::kNaive;
  return options;
}

class Ours {
 public:
  explicit Ours(const Config& config) : naive_(config.variant == "naive"), engine_(Options(config)) {
    if (config.variant == "bulk15") engine::SetBulkSize(engine_, 15);
    for (VarId v = 0; v < kAllVars; ++v) vars_.push_back(engine_.NewVar());
    // A second thread pushes first. Programs push from ops, loaders and several threads, so no figure is for an engine
    // that only one thread has used.
    std::thread([this] { engine_.Push({.name = "second", .updates = {vars_[0]}}, [] {}); }).join();
    engine_.WaitAll();
  }

  std::string WhyNot(std::string_view name) const {
    if (naive_ && name == kBytesPending) return "the naive policy runs each op inside its push";
    if (!naive_ && name.starts_with("floor_")) return "floors are measured with the naive policy";
    if (naive_ && name.starts_with("bulk_")) return "the naive policy has no bulk";
    return {};
  }

  void Push(const Free&) {
    engine_.Push({.name = "free"}, [] { Body(); });
  }
  void Push(const Writer& op) {
    engine_.Push({.name = "w", .updates = {vars_[op.updates[0]]}}, [] { Body(); });
  }
  void Push(const Reader& op) {
    engine_.Push({.name = "r", .reads = {vars_[op.reads[0]]}}, [] { Body(); });
  }
  void Push(const Op<1, 1>& op) {
    engine_.Push({.name = "1w1r", .reads = {vars_[op.reads[0]]}, .updates = {vars_[op.updates[0]]}}, [] { Body(); });
  }
  void Push(const DagOp& op) {
    engine_.Push({.name = "1w2r", .reads = {vars_[op.reads[0]], vars_[op.reads[1]]}, .updates = {vars_[op.updates[0]]}},
                 [] { Body(); });
  }
  void PushBlocked(VarId v, Gate& gate) {
    engine_.Push({.name = "gate", .updates = {vars_[v]}}, [&gate] { gate.wait(); });
  }
  void WaitAll() { engine_.WaitAll(); }
  void Wait(VarId v) { engine_.Wait(vars_[v]); }

  // Push, run and completion of one op on one thread, beside an uncontended mutex pair.
  Answer Extra(std::string_view name, std::size_t n) {
    if (name == "floor_1w") return Floor(n, [&] { Push(Writer{{}, {0}}); });
    if (name == "floor_1w1r") return Floor(n, [&] { Push(Op<1, 1>{{1}, {0}}); });
    if (name == "floor_1w2r") return Floor(n, [&] { Push(DagOp{{1, 2}, {0}}); });
    if (name == "floor_operator") {
      const engine::Operator op =
          engine_.NewOperator({.name = "1w2r", .reads = {vars_[1], vars_[2]}, .updates = {vars_[0]}}, [] { Body(); });
      return Floor(n, [&] { engine_.Push(op); });
    }
    if (name == "bulk_closures") return BulkOfClosures(n);
    if (name.starts_with(TaskBench::kPrefix)) return TaskBench(engine_).Run(name.substr(TaskBench::kPrefix.size()), n);
    if (name == "chains_2_64") return Chains(2, 64, n);
    if (name == "chains_1_65536") return Chains(1, 65536, n);
    if (name.starts_with(kManyVars)) return ManyVars(std::stoul(std::string(name.substr(kManyVars.size()))), n);
    if (name.starts_with(kJoins)) return Joins(std::stoi(std::string(name.substr(kJoins.size()))), n);
    if (name.starts_with(kHostBulk)) return HostBulk(name.substr(kHostBulk.size()), n);
    if (name.starts_with(kAlone)) return Alone(name.substr(kAlone.size()), n);
    return Answer::Skip("no such case");
  }

 private:
  static constexpr std::string_view kAlone = "alone_", kHostBulk = "bulk_host_", kManyVars = "many_vars_",
                                    kJoins = "joins_";

  // The two sides of an op, one after the other on one thread (an engine without workers, whose ops run inside the
  // wait), in batches that stay in the cache: what a pushing thread and a worker would do if no cache line moved
  // between them.
  Answer Alone(std::string_view program, std::size_t n) {
    Config config;
    config.workers = 0;
    Ours alone(config);
    std::vector<double> pushed, ran;
    const Dag dag = MakeDag(n);
    for (std::size_t at = 0; at + kBatch <= n; at += kBatch) {
      const auto start = Clock::now();
      alone.PushBatch(program, dag, at);
      const auto middle = Clock::now();
      alone.WaitAll();
      pushed.push_back(NsBetween(start, middle) / kBatch);
      ran.push_back(NsBetween(middle, Clock::now()) / kBatch);
    }
    if (pushed.empty()) return Answer::Skip("too few ops");
    const double push = Quantile(pushed, 0.5), run = Quantile(ran, 0.5);
    return {{{"ns_per_op", push + run}, {"push_ns", push}, {"run_ns", run}}, {}};
  }

  // Four ops beside each other, one behind them all, and so on: where only one op can run, the other workers have nothing to do.
  Answer Joins(int rounds, std::size_t n) {
    const auto body = [rounds] {
      for (int i = 0; i < rounds; ++i) asm volatile("");
    };
    const std::vector<engine::Var> four(vars_.begin() + 1, vars_.begin() + 5);
    const Meter meter;
    for (std::size_t i = 0; i < n; i += 5) {
      for (const engine::Var& one : four) engine_.Push({.name = "beside", .reads = {vars_[0]}, .writes = {one}}, body);
      engine_.Push({.name = "join", .reads = four, .writes = {vars_[0]}}, body);
    }
    engine_.WaitAll();
    return meter.Stop(n);
  }

  // Ops for the host inside a bulk, and the same ops outside, batch by batch in turns on one engine: two processes
  // differ by more than the bulk costs.
  Answer HostBulk(std::string_view program, std::size_t n) {
    Config config;
    config.workers = 0;
    Ours alone(config);
    std::vector<double> inside, outside, ratios;
    const Dag dag = MakeDag(n);
    const auto timed = [&](std::size_t at, bool in_bulk) {
      const auto start = Clock::now();
      {
        std::optional<engine::Bulk> bulk;
        if (in_bulk) bulk.emplace(alone.engine_, 15);
        alone.PushBatch(program, dag, at);
      }
      alone.WaitAll();
      return NsBetween(start, Clock::now()) / kBatch;
    };
    for (std::size_t at = 0; at + kBatch <= n; at += kBatch) {
      const bool bulk_first = at / kBatch % 2;
      const double first = timed(at, bulk_first), second = timed(at, !bulk_first);
      inside.push_back(bulk_first ? first : second);
      outside.push_back(bulk_first ? second : first);
      // What comes second finds its Vars in the cache, so a ratio is that of two batches, one in each order.
      if (const std::size_t k = inside.size(); bulk_first)
        ratios.push_back((inside[k - 2] + inside[k - 1]) / (outside[k - 2] + outside[k - 1]));
    }
    if (ratios.empty()) return Answer::Skip("too few ops");
    return {{{"ratio_to_no_bulk", Quantile(ratios, 0.5)},
             {"ns_per_op", Quantile(inside, 0.5)},
             {"no_bulk_ns", Quantile(outside, 0.5)}},
            {}};
  }

  // `n` ops in `count` chains, each of which goes over its own `bytes`.
  Answer Chains(std::size_t count, std::size_t bytes, std::size_t n) {
    std::vector<std::vector<uint32_t>> data(count, std::vector<uint32_t>(bytes / sizeof(uint32_t), 1));
    const Meter meter;
    for (std::size_t i = 0; i < n; ++i)
      engine_.Push({.name = "link", .updates = {vars_[i % count]}}, [&own = data[i % count]] {
        for (uint32_t& x : own) x = 3 * x + 1;
      });
    engine_.WaitAll();
    return meter.Stop(n);
  }

  // Ops that read `count` of 1,000 Vars, in no order, and update another one.
  Answer ManyVars(std::size_t count, std::size_t n) {
    constexpr std::size_t kSets = 64, kVars = 1000;
    std::mt19937 random(1);
    std::vector<engine::Var> all(vars_.begin(), vars_.begin() + kVars);
    std::vector<std::vector<engine::Var>> reads;
    for (std::size_t i = 0; i < kSets; ++i) {
      std::shuffle(all.begin(), all.end(), random);
      reads.emplace_back(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
    }
    const Meter meter;
    for (std::size_t i = 0; i < n; ++i)
      engine_.Push({.name = "many", .reads = reads[i % kSets], .updates = {vars_[kVars + i % kSets]}}, [] { Body(); });
    engine_.WaitAll();
    return meter.Stop(n);
  }

  static constexpr std::size_t kBatch = 404;  // four fans

  // Pushes `kBatch` ops of a program, from op `at` of it.
  void PushBatch(std::string_view program, const Dag& dag, std::size_t at) {
    const auto push = [&](const auto& op) { Push(op); };
    if (program == kIndependent) Independent(push, kBatch);
    if (program == kOwnVar)
      for (std::size_t i = 0; i < kBatch; ++i) push(Writer{{}, {static_cast<VarId>((at + i) % kAllVars)}});
    if (program == kChain) Chain(push, kBatch);
    if (program == kFanOut) Fan(push, kBatch);
    if (program == kRandomDag)
      for (std::size_t i = 0; i < kBatch; ++i) push(dag[at + i]);
  }

  // Batches of the two take turns, so that both have the same clock rate.
  template <class PushOne>
  Answer Floor(std::size_t n, const PushOne& push) {
    constexpr std::size_t kBatches = 50;
    const std::size_t size = n / kBatches;
    std::vector<double> ops, pairs, ratios;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    for (std::size_t batch = 0; batch < kBatches; ++batch) {
      const auto start = Clock::now();
      for (std::size_t i = 0; i < size; ++i) push();
      const auto middle = Clock::now();
      for (std::size_t i = 0; i < size; ++i) {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
      }
      ops.push_back(NsBetween(start, middle) / static_cast<double>(size));
      pairs.push_back(NsBetween(middle, Clock::now()) / static_cast<double>(size));
      ratios.push_back(ops.back() / pairs.back());
    }
    engine_.WaitAll();
    return {{{"ns_per_op", Quantile(ops, 0.5)},
             {"mutex_pair_ns", Quantile(pairs, 0.5)},
             {"ratio_to_mutex_pair", Quantile(ratios, 0.5)}},
            {}};
  }

  // What an op of a bulk costs beyond its registration, on one thread. A chain of closures in bulks of 15 is pushed,
  // and run by the wait (an engine without workers). Beside it: the same chain only registered, because its first op is
  // held back; and an uncontended mutex pair. The batches are small, so that both stay in the cache, as those of a
  // pipeline do.
  Answer BulkOfClosures(std::size_t n) {
    constexpr std::size_t kFewOps = 240;
    engine::Engine eng({.workers = 0});
    engine::Var var = eng.NewVar(), gate = eng.NewVar();
    std::vector<double> registered, above, bulked, pairs, ratios;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const auto push = [&] {
      for (std::size_t i = 0; i < kFewOps; ++i) eng.Push({.name = "closure", .updates = {var}}, [] { Body(); });
    };
    for (std::size_t batch = 0; batch < std::max<std::size_t>(n / kFewOps, 20); ++batch) {
      const auto start = Clock::now();
      {
        const engine::Bulk bulk(eng, 15);
        push();
      }
      eng.Wait(var);
      const auto middle = Clock::now();
      engine::HeldOp first = eng.PushHeld({.name = "held", .updates = {var}}, [] {});
      const auto from = Clock::now();
      push();
      const auto to = Clock::now();
      first.Release();
      eng.Wait(var);
      const auto locking = Clock::now();
      for (std::size_t i = 0; i < kFewOps; ++i) {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
      }
      const double pair = NsBetween(locking, Clock::now()) / kFewOps;
      bulked.push_back(NsBetween(start, middle) / kFewOps);
      registered.push_back(NsBetween(from, to) / kFewOps);
      above.push_back(bulked.back() - registered.back());
      pairs.push_back(pair);
      ratios.push_back(above.back() / pair);
    }
    return {{{"ns_above_registration", Quantile(above, 0.5)},
             {"registration_ns", Quantile(registered, 0.5)},
             {"ns_per_op", Quantile(bulked, 0.5)},
             {"mutex_pair_ns", Quantile(pairs, 0.5)},
             {"ratio_to_mutex_pair", Quantile(ratios, 0.5)}},
            {}};
  }

  bool naive_;
  engine::Engine engine_;
  std::vector<engine::Var> vars_;  // their handles go before the engine does
};

}  // namespace

int main(int argc, char** argv) { return perf::Main<Ours>(argc, argv); }
