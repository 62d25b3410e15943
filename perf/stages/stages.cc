// Stages in C++: ours, and a queue that one would write by hand with a mutex, two condition variables and a deque.
// Variants: "" is ours; "queue" the hand-written one; "serial" makes each item where it is used.
// Threads:  the producers of the contender, and the thread that runs the case as the only consumer.
#include <engine/stage.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "../peers/runner.h"
#include "models.h"
#include "smart.h"

namespace {

using namespace perf;
using Item = std::vector<float>;

// A bounded queue as many programs have it. It counts its waiters, so that it wakes nobody in vain.
class HandQueue {
 public:
  explicit HandQueue(std::size_t capacity) : capacity_(capacity) {}
  bool Put(std::unique_ptr<Item> item) {
    std::unique_lock lock(mu_);
    while (items_.size() >= capacity_ && !closed_) {
      ++full_;
      room_.wait(lock);
      --full_;
    }
    if (closed_) return false;
    items_.push_back(std::move(item));
    if (empty_ > 0) filled_.notify_one();
    return true;
  }
  std::unique_ptr<Item> Take() {
    std::unique_lock lock(mu_);
    while (items_.empty()) {
      ++empty_;
      filled_.wait(lock);
      --empty_;
    }
    auto item = std::move(items_.front());
    items_.pop_front();
    if (full_ > 0) room_.notify_one();
    return item;
  }
  void Close() {
    std::lock_guard lock(mu_);
    closed_ = true;
    room_.notify_all();
  }

 private:
  const std::size_t capacity_;
  std::mutex mu_;
  std::condition_variable room_, filled_;
  std::deque<std::unique_ptr<Item>> items_;
  int full_ = 0, empty_ = 0;
  bool closed_ = false;
};

// What a contender offers: the next item of an endless source that runs on `threads` threads.
struct Loop {
  std::function<Item()> take;
  std::function<engine::StageStats()> stats = {};
  std::shared_ptr<void> keep = {};
};

struct HandStage {
  HandStage(std::size_t capacity, int threads, const std::function<Item()>& make) : queue(capacity) {
    for (int i = 0; i < threads; ++i) {
      producers.emplace_back([this, make] {
        while (queue.Put(std::make_unique<Item>(make()))) {
        }
      });
    }
  }
  ~HandStage() {
    queue.Close();
    for (auto& producer : producers) producer.join();
  }
  HandQueue queue;
  std::vector<std::thread> producers;
};

Loop Open(const std::string& variant, std::size_t capacity, int threads, std::function<Item()> make,
          bool autotune = false) {
  if (variant == "serial") return {.take = std::move(make)};
  if (variant == "queue") {
    auto stage = std::make_shared<HandStage>(capacity, threads, make);
    return {.take = [s = stage.get()] { return std::move(*s->queue.Take()); }, .keep = stage};
  }
  auto stage = std::make_shared<engine::Stage<Item>>(
      engine::StageOptions{.capacity = capacity, .num_threads = threads, .autotune = autotune, .max_threads = threads},
      std::move(make));
  return {.take = [s = stage.get()] { return std::move(*s->Take()); },
          .stats = [s = stage.get()] { return s->stats(); },
          .keep = stage};
}

// Takes a known time. It ends when the clock says so, and so needs no calibration.
void Spin(double ns) {
  for (const auto from = Clock::now(); NsBetween(from, Clock::now()) < ns;) {
  }
}

// One synthetic pipeline. Times in microseconds, uniform in mean * [1 - jitter, 1 + jitter].
struct Load {
  double wait = 0, parse = 0, copy = 0;  // of the stage: blocked, computing, moving memory
  double compute = 0;                    // of the step
  double jitter = 0;
  std::size_t capacity = 8;
  bool autotune = false;
};

double Jittered(std::uint64_t& state, double mean, double jitter) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return mean * (1 + jitter * (static_cast<double>(state >> 11) * 0x1p-52 - 1));
}

Item Make(const Load& load, double* spent, std::uint64_t& random) {
  const auto from = Clock::now();
  if (load.wait > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(Jittered(random, load.wait, load.jitter)));
  }
  if (load.parse > 0) Spin(1000 * Jittered(random, load.parse, load.jitter));
  Item item;
  if (load.copy > 0) {
    const auto until = 1000 * Jittered(random, load.copy, load.jitter);
    const auto begin = Clock::now();
    item.resize(4096);
    for (float x = 0; NsBetween(begin, Clock::now()) < until; ++x) std::fill(item.begin(), item.end(), x);
  }
  *spent += NsBetween(from, Clock::now());
  return item;
}

// The time of a step in the steady state, and its ratio to the slower of the two sides, as measured in the same run.
Answer Pipeline(const std::string& variant, const Load& load, std::size_t n) {
  double making = 0;
  std::size_t made = 0;
  std::uint64_t random = 1, random_step = 2;
  const auto make = [&] {
    ++made;
    return Make(load, &making, random);
  };
  Answer answer;
  double step, computing = 0, made_each;
  std::size_t capacity = load.capacity;
  {
    Loop loop = Open(variant, load.autotune ? 1 : load.capacity, 1, make, load.autotune);
    const std::size_t warm = load.autotune ? n : n / 10 + 1;
    Clock::time_point start;
    for (std::size_t i = 0; i < warm + n; ++i) {
      if (i == warm) start = Clock::now(), computing = 0;
      const Item item = loop.take();
      const auto from = Clock::now();
      Spin(1000 * Jittered(random_step, load.compute, load.jitter));
      computing += NsBetween(from, Clock::now());
    }
    step = NsBetween(start, Clock::now()) / static_cast<double>(n);
    if (loop.stats) capacity = loop.stats().capacity;
  }
  made_each = making / static_cast<double>(made);
  const double best = std::max(made_each, computing / static_cast<double>(n));
  answer.figures = {{"step_us", step / 1000},
                    {"over_best", step / best},
                    {"stage_us", made_each / 1000},
                    {"compute_us", computing / static_cast<double>(n) / 1000},
                    {"capacity", static_cast<double>(capacity)}};
  return answer;
}

// The same with autotune; and, beside it, the smallest capacity that would have been enough, found by trying.
Answer Autotuned(Load load, std::size_t n) {
  Answer answer = Pipeline("", load, n);
  load.autotune = false;
  for (load.capacity = 1; load.capacity < 16; ++load.capacity) {
    const Answer fixed = Pipeline("", load, n);
    const auto over = std::find_if(fixed.figures.begin(), fixed.figures.end(),
                                   [](const auto& figure) { return figure.first == "over_best"; });
    if (over->second <= 1.03) break;
  }
  answer.figures.emplace_back("least_capacity", static_cast<double>(load.capacity));
  return answer;
}

// One thread hands an item to itself: the cost of a hand-over if nobody waits.
Answer Handover(const std::string& variant, std::size_t n) {
  if (variant == "serial") return Answer::Skip("hands nothing over");
  auto item = std::make_unique<Item>();
  if (variant == "queue") {
    HandQueue queue(8);
    const Meter meter;
    for (std::size_t i = 0; i < n; ++i) {
      queue.Put(std::move(item));
      item = queue.Take();
    }
    return meter.Stop(n);
  }
  engine::StagingArea area({.capacity = 8});
  const Meter meter;
  for (std::size_t i = 0; i < n; ++i) {
    std::uint64_t ticket;
    area.Begin(&ticket);
    area.Put(ticket, engine::StageItem(item.release(), [](void* data) noexcept { delete static_cast<Item*>(data); }));
    engine::StageItem taken;
    area.Take(&taken);
    item.reset(static_cast<Item*>(taken.Release()));
  }
  return meter.Stop(n);
}

// Two threads and nothing to overlap: the whole cost of a stage for an item.
Answer Stream(const std::string& variant, std::size_t n) {
  Loop loop = Open(variant, 64, 1, [] { return Item(); });
  loop.take();
  const Meter meter;
  for (std::size_t i = 0; i < n; ++i) loop.take();
  return meter.Stop(n);
}

class Stages {
 public:
  explicit Stages(const Config& config) : variant_(config.variant) {}
  Answer Run(std::string_view name, std::size_t n) const {
    if (name == "handover") return Handover(variant_, n);
    if (name == "stream") return Stream(variant_, n);
    if (name == "smart") return variant_.empty() ? SmartPairs(n) : Answer::Skip("runs both ways in one process");
    if (name.starts_with("model_"))
      return variant_.empty() ? ModelSteps(name, n) : Answer::Skip("runs both ways in one process");
    for (const auto& [load_name, load] : Loads()) {
      if (load_name == name)
        return load.autotune && variant_.empty() ? Autotuned(load, n) : Pipeline(variant_, load, n);
    }
    return Answer::Skip("no such case");
  }

 private:
  static std::vector<std::pair<std::string, Load>> Loads() {
    std::vector<std::pair<std::string, Load>> loads;
    for (const int jitter : {0, 50, 100}) {
      const auto add = [&](const char* name, Load load) {
        load.jitter = jitter / 100.0;
        loads.emplace_back(std::string(name) + "_" + std::to_string(jitter), load);
      };
      add("wait_half", {.wait = 500, .compute = 1000});
      add("parse_half", {.parse = 250, .compute = 500});
      add("parse_most", {.parse = 450, .compute = 500});
      add("parse_more", {.parse = 600, .compute = 500});
      add("copy_half", {.copy = 250, .compute = 500});
      add("all_even", {.wait = 150, .parse = 150, .copy = 100, .compute = 500});
      add("autotuned", {.parse = 400, .compute = 500, .autotune = true});
    }
    return loads;
  }
  std::string variant_;
};

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  FILE* answers = TakeStdout();
  const Stages stages(ParseArgs(argc, argv));
  std::string name;
  for (std::size_t n = 0; std::cin >> name >> n;) {
    std::fprintf(answers, "%s\n", ToJson(stages.Run(name, n)).c_str());
    std::fflush(answers);
  }
  return 0;
}
