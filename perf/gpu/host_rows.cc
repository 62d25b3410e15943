// Rows 8 and 9: what the host pays to learn that the device is done.
#include <dirent.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "engine/plan.h"
#include "rig.h"
#include "suite.h"

namespace engine::perf {
namespace {

// Lets a held kernel go a while after somebody began to wait, on a thread of its own, and notes when.
class Releaser {
 public:
  explicit Releaser(Target& target) : target_(target), thread_([this] { Main(); }) {}
  ~Releaser() {
    stop_ = true;
    thread_.join();
  }
  void After(Nanos delay, uint64_t hold) {
    delay_ = delay;
    hold_ = hold;
    go_.store(true, std::memory_order_release);  // the two above. Partner: the acquire in Main
  }
  // Once the kernel has ended.
  SteadyClock::time_point released() {
    while (go_.load(std::memory_order_acquire)) std::this_thread::yield();
    return released_;
  }

 private:
  void Main() {
    while (!stop_) {
      if (!go_.load(std::memory_order_acquire)) {
        std::this_thread::yield();
        continue;
      }
      SpinFor(delay_);
      released_ = SteadyClock::now();
      target_.Release(hold_);
      go_.store(false, std::memory_order_release);  // released_. Partner: the acquire in released()
    }
  }
  Target& target_;
  std::atomic<bool> go_{false}, stop_{false};
  Nanos delay_{};
  uint64_t hold_ = 0;
  SteadyClock::time_point released_;
  std::thread thread_;
};

double Micros(SteadyClock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

Figures Percentiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values[values.size() * 99 / 100]};
}

// Nanoseconds that the retirement thread has run.
double RetirementNanos() {
  double total = 0;
  DIR* tasks = opendir("/proc/self/task");
  if (!tasks) return 0;
  while (const dirent* task = readdir(tasks)) {
    const std::string folder = std::string("/proc/self/task/") + task->d_name;
    std::string name;
    std::getline(std::ifstream(folder + "/comm") >> std::ws, name);
    double ran = 0;
    if (name == "engine/retire" && std::ifstream(folder + "/schedstat") >> ran) total += ran;
  }
  closedir(tasks);
  return total;
}

}  // namespace

void HostRows(Suite& suite) {
  if (suite.Wants(8)) {
    Rig rig(suite.target);
    const auto hand = suite.target.MakeByHand(1, 1);
    const Var a = rig.eng.NewVar("a");
    const int trips = suite.Count(200);
    for (const auto& [name, delay, limit] :
         {std::tuple{"within the spin", Nanos(3'000), Limit{LimitKind::kRatio, 1.1}},
          std::tuple{"beyond the spin", Nanos(300'000), Limit{LimitKind::kDifference, 60}}}) {
      const Nanos after = delay;
      suite.Measure({8,
                     std::string("wake-up of a waiter, ") + name,
                     "spinning on the event",
                     {{"p50", "us", limit}, {"p99", "us", limit}},
                     [&] {
                       Releaser releaser(suite.target);
                       std::vector<double> trip;
                       for (int i = 0; i < trips; ++i) {
                         const uint64_t hold = rig.PushHold({.name = "held", .updates = a, .place = Gpu(0)});
                         releaser.After(after, hold);
                         rig.eng.Wait(a);
                         const auto end = SteadyClock::now();
                         trip.push_back(Micros(end - releaser.released()));
                       }
                       return Percentiles(trip);
                     },
                     [&] {
                       Releaser releaser(suite.target);
                       std::vector<double> trip;
                       for (int i = 0; i < trips; ++i) {
                         const uint64_t hold = hand->Hold(0);
                         hand->Record(0, 0);
                         releaser.After(after, hold);
                         while (!hand->Reached(0)) {
                         }
                         const auto end = SteadyClock::now();
                         trip.push_back(Micros(end - releaser.released()));
                       }
                       return Percentiles(trip);
                     }});
    }
  }
  if (!suite.Wants(9)) return;
  Rig rig(suite.target);
  const Var a = rig.eng.NewVar("a");
  const auto share = [&](auto run) {
    const double before = RetirementNanos();
    const auto begin = SteadyClock::now();
    run();
    return (RetirementNanos() - before) / std::chrono::duration<double, std::nano>(SteadyClock::now() - begin).count();
  };
  const int bulks = suite.Count(1000);
  suite.Measure({9,
                 "retirement thread, 1,000 bulks a second",
                 "",
                 {{"share of a core", "", {LimitKind::kValue, 0.02}}},
                 [&] {
                   return Figures{share([&] {
                     auto next = SteadyClock::now();
                     HeldOps held(rig.eng);
                     for (int i = 0; i < bulks; ++i) {
                       for (int k = 0; k < 15; ++k) rig.Push(held, {.name = "empty", .updates = a, .place = Gpu(0)});
                       held.Release();
                       next += std::chrono::milliseconds(1);
                       std::this_thread::sleep_until(next);
                     }
                   })};
                 },
                 {}});
  engine::Graph graph;
  for (int k = 0; k < 15; ++k)
    graph.Add({.name = "empty", .updates = {a}, .place = Gpu(0)},
              [&](RunContext& ctx) { Must(suite.target.Spin(ctx.stream(), {})); });
  const Plan plan = graph.Compile(rig.eng);
  suite.Measure({9,
                 "retirement thread, 1,000 runs of a plan a second that nobody waits for",
                 "",
                 {{"share of a core", "", {LimitKind::kValue, 0.02}}},
                 [&] {
                   return Figures{share([&] {
                     auto next = SteadyClock::now();
                     for (int i = 0; i < bulks; ++i) {
                       plan.Start();
                       next += std::chrono::milliseconds(1);
                       std::this_thread::sleep_until(next);
                     }
                   })};
                 },
                 {}});
  rig.eng.WaitAll();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // its last look
  suite.Measure({9,
                 "retirement thread, idle",
                 "",
                 {{"share of a core", "", {LimitKind::kValue, 0}}},
                 [&] { return Figures{share([&] { std::this_thread::sleep_for(std::chrono::milliseconds(bulks)); })}; },
                 {}});
}

}  // namespace engine::perf
