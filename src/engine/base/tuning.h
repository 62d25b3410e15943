// Constants that are a matter of speed. No result depends on them.
//
// Where a command is named, it repeats the measurement by which the constant was chosen. Two constants have one, and
// stand first. All others were chosen by what the steps that they weigh cost on 2 cores of an AMD EPYC (Zen 4) VM: a
// clock read 25 ns, a wake 20 to 30 us. Other values were not tried one by one. `./run perf mechanisms` measures what some belong to, with
// and without the whole mechanism: kTinyOpNanos (tiny_regime), kTakeBatch (takes_many), kInlineRun (keeps_successor). The
// constants of devices were chosen without a GPU; `./run perf gpu --rows 18 19 21` measures there what kGraphTrials, kAwaitNap,
// kDozeShortest and kGraphNodeBytes take for granted.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace engine::detail::tuning {

// --- measured
// Below this many times kTinyOpNanos, a worker's first mean above it is doubted. `./run perf core --only c_fan`: 50 ns an
// op without.
inline constexpr int64_t kDoubtfulMeans = 8;
// While redundant edges are sought: how many nodes are visited for each node of the graph. `./run perf plans`: d_dag
// with 4,096 nodes compiles in a few milliseconds, and each edge that is left costs one counter decrement.
inline constexpr uint32_t kReductionVisits = 256;

// --- not measured one by one: ops, their memory and their workers
// How many blocks move between a thread's cache and the depot at once. One lock for 32 ops costs under 1 ns an op.
inline constexpr uint32_t kMagazine = 32;
// How much memory is taken from the system at once, for blocks of one size.
inline constexpr size_t kSlabBytes = size_t{1} << 16;
// A worker runs at most this many ops in a row straight after the op that released each; then the next one is queued.
// And each time that it has taken this many ops from queues, it looks at other threads' queues before its own.
inline constexpr uint32_t kInlineRun = 64;
// How many ops a worker takes from an outside thread's queue at once, if several workers are awake.
inline constexpr uint32_t kTakeBatch = 32;
// When an op is taken from a queue, this many ops behind it are prefetched.
inline constexpr uint32_t kPrefetchAhead = 4;
// When a block is taken from a magazine, the block this far ahead is prefetched for writing.
inline constexpr uint32_t kPrefetchBlocks = 6;
// How often an idle worker or waiter pauses between two looks.
inline constexpr uint32_t kIdlePauses = 16;
// After this many rounds of such looks each is followed by a yield: as long as a hand-over between two cores takes.
inline constexpr uint32_t kRoundsAlone = 1;
// A worker takes the mean of this many ops: a clock read of about 25 ns is then under half a nanosecond an op.
inline constexpr uint32_t kMeasuredOps = 64;
// Below this mean, overhead included, a second worker costs more (lines that move, wakes) than it takes off the first
// one.
inline constexpr int64_t kTinyOpNanos = 200;
// How long the sentinel trusts that ops are tiny, and so how much a long op among tiny ones can delay others.
inline constexpr int64_t kSentinelMicros = 1000;
// A push that waits at the soft bound goes on when this part of the bound is free again, so that it sleeps once for
// many ops.
inline constexpr size_t kRefillDivisor = 2;
// A pusher that finds a tail locked pauses for this many rounds, then yields for this many, and then sleeps.
inline constexpr uint32_t kLockPauses = 64;
inline constexpr uint32_t kLockYields = 16;

// --- not measured one by one: runs of plans
// How many tasks of a run lie between two looks at the clock: 25 ns each, so about 0.2 ns a task.
inline constexpr uint32_t kReplayMeasured = 128;
// Below this mean one thread alone runs a run's tasks: a second one would save less than the lines of the counters cost.
inline constexpr int64_t kSharedTaskNanos = 300;
// About what it costs to take a task from a run's queue; not counted as the task's own time.
inline constexpr int64_t kTakeNanos = 150;
// How long a thread of a run's team that finds nothing ready looks for more before it leaves, in spins
// (EngineOptions::spin): a wake takes longer than the nodes of such runs.
inline constexpr int kTeamSpins = 2;
// Pushes that wake workers so shortly one after the other send them away from their own processor.
inline constexpr std::chrono::microseconds kWokenLately{250};
// How long a worker that begins a run pauses for the thread that waits for it: some 2 us, where a wake takes 30.
inline constexpr uint32_t kWaiterPauses = 50;
// How long a thread that waits for a run sleeps in it at a time, before it waits as for any op.
inline constexpr std::chrono::milliseconds kLongestPark{20};
// How long a run keeps a worker while other ops are ready in its pool.
inline constexpr int64_t kRunTurnMicros = 1000;

// --- not measured: devices and communicators, chosen without a GPU
// How often the retirement thread looks after what nobody waits for. The time doubles while nothing ends. At the
// shortest it takes under 1 % of a core. kDozeLongestUnasked: used where a look calls no function of the device.
inline constexpr std::chrono::microseconds kDozeShortest{2000};
inline constexpr std::chrono::microseconds kDozeLongest{16000};
inline constexpr std::chrono::microseconds kDozeLongestUnasked{128000};
// After so many ops of a lane that nobody waits for, the thread looks how many of them have ended, and lets go of what
// they hold. Half of what a lane takes, so that its issuer need not wait.
inline constexpr uint64_t kLookEach = 256;
// How often it looks while somebody waits, after the spin: a waiter learns of an end at most this late, besides its own
// wake.
inline constexpr std::chrono::microseconds kAwaitNap{20};
// How long a push that finds no room waits while only devices work and none of their ops ends: longer than all but the
// longest kernels. Then it goes on, beyond the bound, because a collective may be waiting for this very push.
inline constexpr std::chrono::milliseconds kRoomOnDevice{50};

// How long a rank that leaves its communicator waits before it looks again whether the other ranks leave too. Nobody is
// in a hurry, and each look is an op.
inline constexpr std::chrono::microseconds kLeaveNap{100};

// How many launches of a lane may be without a known end; beyond that an op waits for the first half of them. CUDA's
// streams take about a thousand, and then a launch waits and holds locks that every other call needs.
inline constexpr uint32_t kLaunchesOfALane = 512;
// After this many ops a record is made although nobody needs it, so that a later waiter waits for at most this many - 1
// ops too many.
inline constexpr uint64_t kOpsARecord = 16;
// An op stays on its producer's lane, also where other ops came behind the producer, unless the lane has more than
// twice as much as the shortest and this many more.
inline constexpr uint64_t kLaneSlack = 16;
// How long the retirement thread may be in one call before a communicator that is overdue is aborted without it.
inline constexpr std::chrono::milliseconds kRetirementStuck{250};

// How long issued work for which somebody waits may stay without a record. Records come at the end of a dispatch; only
// a body that blocks on something outside the engine makes a dispatch last this long.
inline constexpr std::chrono::milliseconds kChainPatience{20};
// If the first member of a chain is blocked, each later one is compared with this many members before it, to see
// whether it waits with them: with all of them, in a bulk of the default size. A member that is farther back starts by
// itself, which costs a dispatch.
inline constexpr size_t kMostLooksBack = 16;
// Bulks as device graphs (docs/gpu.md#bulks-that-come-again): how many times a bulk starts before it is captured; how
// many executables one structure has, which is as many lanes as usually run one; how much memory, and how many
// structures, are kept; and after how many changes of params a structure whose params change in three of four starts
// stays without a graph, because a capture costs about as much as issuing.
inline constexpr uint64_t kGraphWarmUps = 2;
inline constexpr size_t kGraphExecs = 4;
inline constexpr size_t kGraphBytes = size_t{256} << 20;
// What a node of an executable counts as on CUDA, which does not say how much memory it takes. The kit's part
// graph-bytes asks a GPU.
inline constexpr size_t kGraphNodeBytes = size_t{8} << 10;
inline constexpr size_t kGraphKeys = 1024;
inline constexpr uint64_t kGraphTrials = 16;

}  // namespace engine::detail::tuning
