// workload: the programs that every contender runs, so that only the engine makes the figures differ.
// Threads:   pure values and pure functions. A program is built before the clock starts.
// Order:     operations name Vars by number; an Update reads and writes (MXNet's mutable, OpenMP's inout).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace perf {

using VarId = std::uint32_t;

inline constexpr VarId kVars = 1000;          // the Vars that the random programs touch
inline constexpr VarId kAllVars = 20'000;     // all Vars, more than any contender lets wait at once
inline constexpr std::size_t kFan = 1 + 100;  // one writer, then its readers
inline constexpr VarId kStepOps = 64;         // in a step that is waited for
inline constexpr int kPushers = 4;            // how many threads push in the multi-pusher cases

// One operation. How many Vars it touches is part of its type, because OpenMP needs its clauses at compile time.
template <std::size_t R, std::size_t U>
struct Op {
  std::array<VarId, R> reads;
  std::array<VarId, U> updates;
};
using Free = Op<0, 0>;
using Writer = Op<0, 1>;
using Reader = Op<1, 0>;
using DagOp = Op<2, 1>;
using Dag = std::vector<DagOp>;

// splitmix64: small, and the same numbers on every platform, which the distributions of std:: do not promise.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}
  VarId Below(VarId bound) {
    std::uint64_t x = (state_ += 0x9e3779b97f4a7c15ull);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
    return static_cast<VarId>(((x >> 32) * bound) >> 32);
  }

 private:
  std::uint64_t state_;
};

// n operations, each over three distinct Vars of [first, first + count): MXNet hangs on an op that reads what it writes.
inline Dag MakeDag(std::size_t n, VarId first = 0, VarId count = kVars, std::uint64_t seed = 1) {
  Rng rng(seed);
  Dag dag(n);
  for (DagOp& op : dag) {
    const VarId a = rng.Below(count);
    VarId b = rng.Below(count);
    while (b == a) b = rng.Below(count);
    VarId c = rng.Below(count);
    while (c == a || c == b) c = rng.Below(count);
    op = {{first + a, first + b}, {first + c}};
  }
  return dag;
}

// The programs. They call `push` with each operation in program order.
template <class Push>
void Independent(Push&& push, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) push(Free{});
}

// Independent too, but each names a Var, so nothing is saved by having no accesses at all.
template <class Push>
void OwnVar(Push&& push, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) push(Writer{{}, {static_cast<VarId>(i % kAllVars)}});
}

template <class Push>
void Chain(Push&& push, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) push(Writer{{}, {0}});
}

template <class Push>
void Fan(Push&& push, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (i % kFan == 0) {
      push(Writer{{}, {0}});
    } else {
      push(Reader{{0}, {}});
    }
  }
}

template <class Push>
void RandomDag(Push&& push, const Dag& dag) {
  for (const DagOp& op : dag) push(op);
}

// A square of operations, each after the one to its left and the one above it.
inline constexpr VarId kGridSide = 64;
template <class Push>
void Grid(Push&& push) {
  const auto at = [](VarId x, VarId y) { return y * kGridSide + x; };
  for (VarId y = 0; y < kGridSide; ++y) {
    for (VarId x = 0; x < kGridSide; ++x) {
      if (x > 0 && y > 0) {
        push(DagOp{{at(x - 1, y), at(x, y - 1)}, {at(x, y)}});
      } else if (x > 0 || y > 0) {
        push(Op<1, 1>{{x > 0 ? at(x - 1, y) : at(x, y - 1)}, {at(x, y)}});
      } else {
        push(Writer{{}, {at(x, y)}});
      }
    }
  }
}

// Names of the cases, as the driver asks for them.
inline constexpr std::string_view kIndependent = "a_independent";
inline constexpr std::string_view kOwnVar = "a_own_var";
inline constexpr std::string_view kChain = "b_chain";
inline constexpr std::string_view kFanOut = "c_fan";
inline constexpr std::string_view kRandomDag = "d_dag";
inline constexpr std::string_view kPushLatency = "push_latency";
inline constexpr std::string_view kRoundtripWarm = "roundtrip_warm";
inline constexpr std::string_view kRoundtripCold = "roundtrip_cold";
inline constexpr std::string_view kWaitedSteps = "steps_64";
inline constexpr std::string_view kBytesPending = "bytes_pending";
inline constexpr std::string_view kDisjoint = "pushers4_disjoint";
inline constexpr std::string_view kOverlap = "pushers4_overlap";
// Cases that replay a graph of kGraphNodes operations, which was built before the clock starts, have the name "replay_"
// and the program.
inline constexpr std::size_t kGraphNodes = std::size_t{kGridSide} * kGridSide;
inline constexpr std::string_view kReplay = "replay_";
inline constexpr std::string_view kGrid = "grid";

}  // namespace perf
