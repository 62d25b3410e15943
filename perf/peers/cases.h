// cases: how each case is run and measured on a Backend (runner.h says what a Backend is).
// Threads:   the thread that calls RunCase pushes; the multi-pusher cases start their own.
#pragma once

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "measure.h"
#include "workload.h"

namespace perf {

struct Config {
  int workers = 2;      // threads of the pool, without the one that pushes
  std::string variant;  // for contenders that have several modes

  // For contenders whose pushing thread works too: no more threads than cores, because spinning threads would disturb
  // each other.
  int Team() const { return std::max(2, std::min(workers + 1, static_cast<int>(std::thread::hardware_concurrency()))); }
};

// Takes the place of a contender whose library is not on this machine.
struct Absent {
  std::string why;
  std::string WhyNot(std::string_view) const { return why; }
  template <class AnyOp>
  void Push(const AnyOp&) {}
  void PushBlocked(VarId, Gate&) {}
  void WaitAll() {}
  void Wait(VarId) {}
};

template <class Backend, class Body>
void InSession(Backend& backend, Body&& body) {
  if constexpr (requires { backend.Session(body); }) {
    backend.Session(body);
  } else {
    body();
  }
}

template <class Backend>
void Clear(Backend& backend) {
  if constexpr (requires { backend.Clear(); }) backend.Clear();
}

// From the first push until everything has completed. `program` pushes n operations through the function that it gets.
template <class Backend, class Program>
Answer Throughput(Backend& backend, std::size_t n, Program&& program) {
  Answer answer;
  InSession(backend, [&] {
    const Meter meter;
    program([&](const auto& op) { backend.Push(op); });
    backend.WaitAll();
    answer = meter.Stop(n);
    if constexpr (requires { backend.Rerun(); }) {
      backend.Rerun();  // the first rerun may still allocate
      const Meter again;
      backend.Rerun();
      answer.figures.emplace_back("rerun_ns_per_op", again.Stop(n).figures.front().second);
    }
    Clear(backend);
  });
  return answer;
}

// The push call alone, on the random DAG. The clock is read once for each push; what that costs is subtracted.
template <class Backend>
Answer PushLatency(Backend& backend, std::size_t n) {
  const Dag dag = MakeDag(n);
  std::vector<double> ns(n, 0.0);
  const double clock_cost = ClockCost();
  InSession(backend, [&] {
    auto last = Clock::now();
    for (std::size_t i = 0; i < n; ++i) {
      backend.Push(dag[i]);
      const auto now = Clock::now();
      ns[i] = NsBetween(last, now);
      last = now;
    }
    backend.WaitAll();
    Clear(backend);
  });
  const auto quantile = [&](double q) { return std::max(0.0, Quantile(ns, q) - clock_cost); };
  return {{{"push_p50_ns", quantile(0.5)}, {"push_p99_ns", quantile(0.99)}}, {}};
}

// One op, from its push until the wait for its Var has returned. Before each op, `idle` lets the pool fall asleep.
template <class Backend>
Answer Roundtrip(Backend& backend, std::size_t n, std::chrono::milliseconds idle) {
  std::vector<double> us(n, 0.0);
  InSession(backend, [&] {
    for (double& trip : us) {
      if (idle.count() > 0) std::this_thread::sleep_for(idle);
      const auto from = Clock::now();
      backend.Push(Writer{{}, {0}});
      backend.Wait(0);
      trip = NsBetween(from, Clock::now()) / 1e3;
      Clear(backend);
    }
  });
  return {{{"trip_p50_us", Quantile(us, 0.5)}, {"trip_p99_us", Quantile(us, 0.99)}}, {}};
}

// Steps of a program: kStepOps independent updates, then a wait for all of them.
template <class Backend>
Answer Steps(Backend& backend, std::size_t n) {
  Answer answer;
  InSession(backend, [&] {
    const std::size_t steps = std::max<std::size_t>(1, n / kStepOps);
    const Meter meter;
    for (std::size_t step = 0; step < steps; ++step) {
      for (VarId v = 0; v < kStepOps; ++v) backend.Push(Writer{{}, {v}});
      backend.WaitAll();
    }
    answer = meter.Stop(steps * kStepOps);
    Clear(backend);
  });
  return answer;
}

// How much the process grows for each op of a chain whose first op is held back. The driver asks a fresh process, so
// that no memory that was freed earlier is used again. With few ops, the figure shows what malloc handed out instead of
// pages.
template <class Backend>
Answer BytesPending(Backend& backend, std::size_t n) {
  bool by_malloc = false;
  if constexpr (requires { backend.MaxPending(); }) {
    by_malloc = n > backend.MaxPending();
    n = std::min(n, backend.MaxPending());
  }
  Gate gate(1);
  double bytes = 0;
  const auto grown = [&] { return by_malloc ? MallocBytes() : ResidentBytes(); };
  InSession(backend, [&] {
    for (int i = 0; i < 100; ++i) backend.Push(Writer{{}, {1}});  // wakes the pool; pools are lazy
    backend.WaitAll();
    Clear(backend);
    backend.PushBlocked(0, gate);
    const double before = grown();
    for (std::size_t i = 0; i < n; ++i) backend.Push(Writer{{}, {0}});
    bytes = grown() - before;
    gate.count_down();
    backend.WaitAll();
    Clear(backend);
  });
  return {{{"bytes_per_op", bytes / static_cast<double>(n)}, {"held", static_cast<double>(n)}}, {}};
}

// kPushers threads push their shares at once: from their common start until everything has completed.
template <class Backend>
Answer ManyPushers(Backend& backend, std::size_t n, bool overlap) {
  const std::size_t share = n / kPushers;
  constexpr VarId kOwn = kVars / kPushers;
  std::vector<Dag> shares;
  for (int i = 0; i < kPushers; ++i) {
    const auto id = static_cast<VarId>(i);
    shares.push_back(overlap ? MakeDag(share, 0, kVars, id + 1) : MakeDag(share, id * kOwn, kOwn, id + 1));
  }
  const auto push_share = [&](int i) {
    const Dag& dag = shares[static_cast<std::size_t>(i)];
    if constexpr (requires { backend.PushShared(dag.front()); }) {
      if (overlap) return RandomDag([&](const DagOp& op) { backend.PushShared(op); }, dag);
    }
    RandomDag([&](const DagOp& op) { backend.Push(op); }, dag);
  };
  if constexpr (requires { backend.Pushers(kPushers, n, push_share); }) {
    return backend.Pushers(kPushers, share * kPushers, push_share);
  } else {
    std::barrier start(kPushers + 1);
    std::vector<std::thread> threads;
    for (int i = 0; i < kPushers; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        push_share(i);
      });
    }
    const Meter meter;
    start.arrive_and_wait();
    for (std::thread& thread : threads) thread.join();
    backend.WaitAll();
    return meter.Stop(share * kPushers);
  }
}

// Builds the graph of `program` and runs it once; then times as many reruns as make n operations.
template <class Backend, class Program>
Answer Replays(Backend& backend, std::size_t n, Program&& program) {
  Answer answer;
  const std::size_t runs = std::max<std::size_t>(1, n / kGraphNodes);
  InSession(backend, [&] {
    program([&](const auto& op) { backend.Push(op); });
    backend.Rerun();
    const Meter meter;
    if constexpr (requires { backend.RerunMany(runs); }) {
      backend.RerunMany(runs);
    } else {
      for (std::size_t i = 0; i < runs; ++i) backend.Rerun();
    }
    answer = meter.Stop(runs * kGraphNodes);
    Clear(backend);
  });
  return answer;
}

template <class Backend>
Answer ReplayCase(Backend& backend, std::string_view program, std::size_t n) {
  if (program == kGrid) return Replays(backend, n, [](auto&& push) { Grid(push); });
  if (program == kIndependent) return Replays(backend, n, [](auto&& push) { Independent(push, kGraphNodes); });
  if (program == kOwnVar) return Replays(backend, n, [](auto&& push) { OwnVar(push, kGraphNodes); });
  if (program == kChain) return Replays(backend, n, [](auto&& push) { Chain(push, kGraphNodes); });
  if (program == kFanOut) return Replays(backend, n, [](auto&& push) { Fan(push, kGraphNodes); });
  if (program != kRandomDag) return Answer::Skip("no such graph");
  const Dag dag = MakeDag(kGraphNodes);
  return Replays(backend, n, [&](auto&& push) { RandomDag(push, dag); });
}

template <class Backend>
Answer RunCase(Backend& backend, std::string_view name, std::size_t n) {
  using std::chrono::milliseconds;
  if (std::string why = backend.WhyNot(name); !why.empty()) return Answer::Skip(std::move(why));
  if (name == kIndependent) return Throughput(backend, n, [n](auto&& push) { Independent(push, n); });
  if (name == kOwnVar) return Throughput(backend, n, [n](auto&& push) { OwnVar(push, n); });
  if (name == kChain) return Throughput(backend, n, [n](auto&& push) { Chain(push, n); });
  if (name == kFanOut) return Throughput(backend, n, [n](auto&& push) { Fan(push, n); });
  if (name == kRandomDag) {
    const Dag dag = MakeDag(n);
    return Throughput(backend, n, [&](auto&& push) { RandomDag(push, dag); });
  }
  if (name == kPushLatency) return PushLatency(backend, n);
  if (name == kRoundtripWarm) return Roundtrip(backend, n, milliseconds(0));
  if (name == kRoundtripCold) return Roundtrip(backend, n, milliseconds(50));
  if (name == kWaitedSteps) {
    if constexpr (requires { backend.Rerun(); }) return Answer::Skip("its graph would be built anew for each step");
    return Steps(backend, n);
  }
  if (name == kBytesPending) return BytesPending(backend, n);
  if (name == kDisjoint) return ManyPushers(backend, n, false);
  if (name == kOverlap) return ManyPushers(backend, n, true);
  if constexpr (requires { backend.Rerun(); }) {
    if (name.starts_with(kReplay)) return ReplayCase(backend, name.substr(kReplay.size()), n);
  }
  if constexpr (requires { backend.Extra(name, n); }) return backend.Extra(name, n);
  return Answer::Skip("no such case");
}

}  // namespace perf
