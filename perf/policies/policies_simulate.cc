// The scheduler of cost_model on a virtual clock: 4 to 256 workers, up to a million nodes. One line of JSON for each
// point. Ours are the ranks, the batches and the order of the queue. What they cost for each node is measured on the
// real clock; the makespan is simulated.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>

#include "../../src/costmodel/batching.h"
#include "engine/spi/rank_queue.h"
#include "programs.h"

namespace {

using namespace engine::costmodel;
using Clock = std::chrono::steady_clock;

double NsSince(Clock::time_point from) { return std::chrono::duration<double, std::nano>(Clock::now() - from).count(); }

// Adds one task and takes one, with some thousand others in the queue.
double QueueNanos(uint32_t places) {
  std::vector<uint64_t> words(engine::RankQueue::WordsFor(places));
  engine::RankQueue queue(words.data(), places);
  std::mt19937 random(1);
  for (uint32_t i = 0; i < std::min(places, 1000u); ++i) queue.Add(i * (places / std::min(places, 1000u)));
  constexpr int kTimes = 1000000;
  const auto from = Clock::now();
  for (int i = 0; i < kTimes; ++i) queue.Add(queue.TakeFirst());
  return NsSince(from) / kTimes;
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  constexpr double kPick = 100, kDispatch = 100;  // nanoseconds in the queue, and outside it, for each task
  for (const uint32_t size : {1000u, 10000u, 100000u, 1000000u}) {
    if (quick && size > 100000) break;
    const perf::Program program = perf::Layered(perf::Draw(1, 5000), size, std::max<uint32_t>(8, size / 50));
    const auto nodes = static_cast<uint32_t>(program.cost.size());
    auto from = Clock::now();
    const Dag dag = program.ToDag();
    const Critical critical = FindCritical(dag, program.cost);
    const double ranks = NsSince(from) / nodes;
    const std::vector<uint32_t> kind(nodes, 0);
    const double queue = QueueNanos(nodes);
    for (const int workers : {4, 16, 64, 256}) {
      from = Clock::now();
      const std::vector<uint32_t> batch = Batch(dag, program.cost, kind, {kPick + kDispatch, workers});
      const double batching = NsSince(from) / nodes;
      const double bound = critical.Bound(workers);
      const Contracted tasks = Contract(dag, program.cost, batch);
      std::vector<double> dispatched = tasks.cost;
      for (double& c : dispatched) c += kPick + kDispatch;
      const Critical ranked = FindCritical(tasks.dag, dispatched);
      const Simulated free = Simulate(dag, program.cost, critical.rank, workers);
      const Simulated alone = Simulate(dag, program.cost, critical.rank, workers, kPick, kDispatch);
      const Simulated batched = Simulate(tasks.dag, tasks.cost, ranked.rank, workers, kPick, kDispatch);
      std::printf(
          "{\"nodes\": %u, \"workers\": %d, \"free\": %.4f, \"unbatched\": %.4f, \"batched\": %.4f, "
          "\"tasks\": %u, \"rank_ns\": %.1f, \"batch_ns\": %.1f, \"queue_ns\": %.1f}\n",
          size, workers, free.makespan / bound, alone.makespan / bound, batched.makespan / bound, batched.ran, ranks,
          batching, queue);
      std::fflush(stdout);
    }
  }
  return 0;
}
