// Measured constants, each with the command that chose it. Machine of the figures: 2 cores of an AMD EPYC (Zen 4) VM.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace engine::detail::tuning {

// Blocks that move between a thread's cache and the depot at once. One lock per 32 ops is under 1 ns an op.
inline constexpr uint32_t kMagazine = 32;
// Memory taken from the system at once, for blocks of one size.
inline constexpr size_t kSlabBytes = size_t{1} << 16;
// Ops run straight after the one that released them before the worker looks at the queues again, and looks into them before
// other threads' come first.
inline constexpr uint32_t kInlineRun = 64;
// Ops taken from another thread's queue at once when several workers are awake.
inline constexpr uint32_t kTakeBatch = 32;
// How far ahead of the op taken its successors in the queue are prefetched.
inline constexpr uint32_t kPrefetchAhead = 4;
// How far ahead of the block taken the next ones of the magazine are prefetched for writing.
inline constexpr uint32_t kPrefetchBlocks = 6;
// Pauses between two looks of an idle worker or waiter.
inline constexpr uint32_t kIdlePauses = 16;
// Pauses for each op of the run that has just ended, and at most (some 4 us): lets a pusher get ahead by some ops, so that
// the lines of the queue and of the Vars do not change cores for each of them. `./run perf core --only a_own_var`: 72 ns
// an op without, 56 with.
inline constexpr uint32_t kPausesPerOp = 8;
inline constexpr uint32_t kMostPauses = 200;
// Rounds of such looks before each is followed by a yield: as long as a hand-over between two cores takes.
inline constexpr uint32_t kRoundsAlone = 1;
// Ops of which a worker takes the mean: a clock read of about 25 ns is then under half a nanosecond an op.
inline constexpr uint32_t kMeasuredOps = 64;
// Below this mean, overhead included, a second worker costs more (lines that move, wakes) than it takes off the first.
inline constexpr int64_t kTinyOpNanos = 200;
// Up to so many times that, a first mean is doubted. `./run perf core --only c_fan`: 50 ns an op without.
inline constexpr int64_t kDoubtfulMeans = 8;
// How long the sentinel trusts a tiny regime: bounds what a long op among tiny ones can delay.
inline constexpr int64_t kSentinelMicros = 1000;
// A push blocked at the soft bound goes on when this part of the bound is free again: one sleep for many ops.
inline constexpr size_t kRefillDivisor = 2;
// Rounds of pausing, then of yielding, of a pusher that finds a tail locked, before it sleeps.
inline constexpr uint32_t kLockPauses = 64;
inline constexpr uint32_t kLockYields = 16;
// Nodes looked at, for each node of a graph, in search of edges that follow from others. `perf plans`: d_dag, 4,096 nodes
// compiles in a few milliseconds, and what is left costs one counter decrement.
inline constexpr uint32_t kReductionVisits = 256;
// Tasks of a run between two looks at the clock: 25 ns each, so about 0.2 ns a task.
inline constexpr uint32_t kReplayMeasured = 128;
// Below this mean a task is not worth giving to an idle worker: the counters' lines would move for less than they save.
inline constexpr int64_t kSharedTaskNanos = 300;
// How long a worker of a ranked run that finds nothing ready looks for it before it goes to sleep, in spins
// (EngineOptions::spin): a wake takes longer than the nodes that such a run is made of.
inline constexpr int kRankedSpins = 5;
// And how long it looks for the next run when one has ended. `./run perf policies --only fork_join_5`: the second worker of
// a step that follows at once begins some 20 us later without.
inline constexpr int kLingerSpins = 2;
// How long a run keeps a worker while other ops are ready there.
inline constexpr int64_t kRunTurnMicros = 1000;

// How often the retirement thread looks while nobody waits for the device; doubled while nothing ends. At the shortest it
// takes under 1 % of a core.
inline constexpr std::chrono::microseconds kDozeShortest{2000};
inline constexpr std::chrono::microseconds kDozeLongest{16000};
// And while somebody does, beyond the spin: the most that a waiter may learn late, besides its own wake.
inline constexpr std::chrono::microseconds kAwaitNap{20};
// How long a push that finds no room waits while devices alone work and none of their ops ends: longer than all but the longest
// kernels. A collective may never end without the push, so it goes on then, beyond the bound.
inline constexpr std::chrono::milliseconds kRoomOnDevice{50};

// Between two looks whether the other ranks of a communicator leave, too. Nobody is in a hurry, and each look is an op.
inline constexpr std::chrono::microseconds kLeaveNap{100};

// How long a run that is awaited may go on before its record. Records of runs come at their ends; only a body that
// blocks on something else than the engine is caught by this.
inline constexpr std::chrono::milliseconds kRunPatience{20};
// A member of a chain whose first is blocked is compared with so many before it, to see whether it waits with them: all, in a
// bulk of the default size. Beyond that it starts by itself, which costs a dispatch.
inline constexpr size_t kMostLooksBack = 16;
// Bulks as graphs: eager runs before a capture (as the page on bulk asks); executables of one structure, for as many lanes
// as usually run one; memory and structures kept; param changes after which a structure that changes in three of four runs
// is left eager, because a capture costs about what issuing does.
inline constexpr uint64_t kGraphWarmUps = 2;
inline constexpr size_t kGraphExecs = 4;
inline constexpr size_t kGraphBytes = size_t{256} << 20;
inline constexpr size_t kGraphKeys = 1024;
inline constexpr uint64_t kGraphTrials = 16;

}  // namespace engine::detail::tuning
