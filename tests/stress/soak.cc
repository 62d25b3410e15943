// soak --seconds 60 | --ops N: four threads push ops over 3 of 1,000 shared Vars each. After a warm-up the memory of
// the engine and of the process must stay flat, and everything must go on: a watchdog ends the process otherwise.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "stress/watchdog.h"
#include "support/sanitizers.h"

namespace {

using Clock = std::chrono::steady_clock;

uint64_t ResidentBytes() {
  FILE* f = fopen("/proc/self/statm", "r");
  unsigned long total = 0, resident = 0;
  if (!f || fscanf(f, "%lu %lu", &total, &resident) != 2) resident = 0;
  if (f) fclose(f);
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

struct Load {
  engine::Engine eng{{.workers = 2, .max_pending = 4096}};
  std::vector<engine::Var> vars;
  std::atomic<uint64_t> counts[4] = {};
  std::atomic<bool> stop{false};

  void Pusher(size_t thread, uint64_t ops) {
    uint64_t state = thread + 1;
    const auto random = [&] {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      return static_cast<size_t>(state >> 33) % vars.size();
    };
    for (uint64_t i = 0; i < ops && !stop.load(std::memory_order_relaxed); ++i) {
      eng.Push({.name = "soak", .reads = {vars[random()], vars[random()]}, .updates = {vars[random()]}}, [] {});
      counts[thread].store(i + 1, std::memory_order_relaxed);
    }
  }
  uint64_t pushed() const {
    uint64_t n = 0;
    for (const auto& c : counts) n += c.load(std::memory_order_relaxed);
    return n;
  }
};

}  // namespace

int main(int argc, char** argv) {
  double seconds = 1e9;
  uint64_t ops = ~uint64_t{0};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!strcmp(argv[i], "--seconds")) seconds = atof(argv[i + 1]);
    if (!strcmp(argv[i], "--ops")) ops = strtoull(argv[i + 1], nullptr, 0);
  }
  if (argc < 3 || argc % 2 == 0) return fprintf(stderr, "soak --seconds S | --ops N\n"), 2;

  Load load;
  for (int i = 0; i < 1000; ++i) load.vars.push_back(load.eng.NewVar());
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) threads.emplace_back([&, t] { load.Pusher(t, ops / 4); });

  const auto begin = Clock::now();
  uint64_t warm_slabs = 0, warm_resident = 0;
  bool flat = true;
  for (uint64_t last = 0;;) {
    engine::test::Watchdog watchdog("the soak makes no progress", 60);
    while (load.pushed() == last && load.pushed() < ops / 4 * 4) std::this_thread::yield();
    // WaitAll while the others push: a tenth of a second of them at a time.
    const auto until = Clock::now() + std::chrono::milliseconds(100);
    do load.eng.WaitAll();
    while (Clock::now() < until && load.pushed() < ops / 4 * 4);
    last = load.pushed();
    const double passed = std::chrono::duration<double>(Clock::now() - begin).count();
    const bool over = passed > seconds || last >= ops / 4 * 4;
    const bool warm = passed > std::min(5.0, seconds / 3) && last > 100'000;
    const uint64_t slabs = load.eng.stats().slab_bytes, resident = ResidentBytes();
    if (warm && !warm_slabs) warm_slabs = slabs, warm_resident = resident;
    // Slabs: flat but for a magazine that moved elsewhere. Resident: what the C library does on its own.
    if (warm_slabs && slabs > warm_slabs + warm_slabs / 8 + (256 << 10)) flat = false;
    if (warm_resident && resident > warm_resident + (8 << 20) && !engine::test::kSanitized) flat = false;
    if (over || !flat) {
      load.stop = true;
      for (auto& t : threads) t.join();
      load.eng.WaitAll();
      const auto s = load.eng.stats();
      printf("%llu ops in %.1f s; slabs %llu KiB (warm %llu), resident %llu KiB (warm %llu)\n",
             static_cast<unsigned long long>(s.completed), passed, static_cast<unsigned long long>(slabs >> 10),
             static_cast<unsigned long long>(warm_slabs >> 10), static_cast<unsigned long long>(resident >> 10),
             static_cast<unsigned long long>(warm_resident >> 10));
      if (s.completed != s.pushed) return puts("not every op settled"), 1;
      if (!flat) return puts("memory grows"), 1;
      return 0;
    }
  }
}
