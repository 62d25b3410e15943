#include "random_program.h"

#include <deque>
#include <optional>

#include "engine/bulk.h"
#include "support/on_device.h"

namespace engine::test {
namespace {

// Calls completions on threads that the engine does not know, as an I/O library would.
class Completers {
 public:
  Completers() {
    for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { Main(); });
  }
  ~Completers() {
    {
      std::lock_guard lock(mu_);
      over_ = true;
      changed_.notify_all();
    }
    for (auto& t : threads_) t.join();
  }
  void Post(std::function<void()> call) {
    std::lock_guard lock(mu_);
    calls_.push_back(std::move(call));
    changed_.notify_one();
  }

 private:
  void Main() {
    std::unique_lock lock(mu_);
    for (;;) {
      changed_.wait(lock, [&] { return over_ || !calls_.empty(); });
      if (calls_.empty()) return;
      auto call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
      call = nullptr;  // the last copy of a completion goes here, not under the lock
      lock.lock();
    }
  }
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  std::vector<std::thread> threads_;
  bool over_ = false;
};

class Program {
 public:
  Program(const Shape& shape, uint64_t seed)
      : shape_(shape), seed_(seed), oracle_(shape.vars + kTemps), eng_(Options()) {
    for (uint32_t v = 0; v < shape.vars; ++v) vars_.push_back(eng_.NewVar("v" + std::to_string(v)));
    cancelled_.Cancel();
  }

  std::string Run() {
    std::vector<std::thread> threads;
    for (int t = 0; t < shape_.pushers; ++t) threads.emplace_back([this, t] { Pusher(t); });
    for (auto& t : threads) t.join();
    while (!Settled()) {
    }
    const EngineStats s = eng_.stats();
    if (s.pushed != s.completed)
      return "pushed " + std::to_string(s.pushed) + ", completed " + std::to_string(s.completed);
    return oracle_.Check();
  }

 private:
  static constexpr uint32_t kTemps = 4096;

  EngineOptions Options() const {
    EngineOptions o = shape_.bulk ? OnDevice(shape_.workers) : Quiet(shape_.workers);
    o.max_pending = shape_.max_pending;
    o.policy = shape_.policy;
    o.io_threads = 2;
    o.max_spare_threads = 256;
    return o;
  }
  bool Settled() {
    try {
      eng_.WaitAll();
      return true;
    } catch (const OpError&) {
      return false;  // one error less
    }
  }

  // Distinct Vars with random modes; `extra` is the temporary one, or null.
  std::vector<Use> RandomUses(Random& random, const uint32_t* extra) {
    std::vector<Use> uses;
    const uint64_t n = random.Below(4);
    for (uint64_t i = 0; i < n; ++i) {
      const auto var = static_cast<uint32_t>(random.Below(shape_.vars));
      if (std::none_of(uses.begin(), uses.end(), [&](const Use& u) { return u.var == var; }))
        uses.push_back({var, random.OneIn(2)   ? AccessMode::kRead
                             : random.OneIn(2) ? AccessMode::kUpdate
                                               : AccessMode::kWrite});
    }
    if (extra) uses.push_back({*extra, random.OneIn(2) ? AccessMode::kUpdate : AccessMode::kWrite});
    return uses;
  }

  struct Sets {
    std::vector<Var> reads, updates, writes;
  };
  Sets Split(const std::vector<Use>& uses, const Var& temp) {
    Sets sets;
    for (const Use& use : uses) {
      auto& set = use.mode == AccessMode::kRead     ? sets.reads
                  : use.mode == AccessMode::kUpdate ? sets.updates
                                                    : sets.writes;
      set.push_back(use.var < shape_.vars ? vars_[use.var] : temp);
    }
    return sets;
  }

  // The body of every op: versions, then the oracle's work.
  void Body(RunContext& ctx, OpRecord* record, const Sets& sets, bool fails) {
    size_t r = 0, u = 0, w = 0;
    for (Use& use : record->uses)
      use.version = ctx.version(use.mode == AccessMode::kRead     ? sets.reads[r++]
                                : use.mode == AccessMode::kUpdate ? sets.updates[u++]
                                                                  : sets.writes[w++]);
    oracle_.Run(*record, fails);
    if (fails) throw std::runtime_error("asked to");
  }

  void Pusher(int thread) {
    Random random(seed_ * 131 + static_cast<uint64_t>(thread));
    std::deque<HeldOp> held;
    SetBulkSize(eng_, shape_.bulk);  // never set back: the thread's end releases
    std::optional<Bulk> scope;
    for (int i = 0; i < shape_.ops; ++i) {
      if (shape_.bulk > 1 && random.OneIn(50)) {
        scope.reset();
        if (random.OneIn(2)) scope.emplace(eng_, static_cast<int>(random.Below(20)));
      }
      One(random, held);
      if (held.size() > 4 || (!held.empty() && random.OneIn(8))) held.pop_front();
      // A thread that waits must not hold an op that the wait may be for.
      if (random.OneIn(64)) {
        held.clear();
        Wait(random);
      }
    }
  }

  void Wait(Random& random) {
    const Var& var = vars_[random.Below(shape_.vars)];
    try {
      switch (random.Below(4)) {
        case 0: eng_.Wait(var); break;
        case 1: eng_.WaitToWrite(var); break;
        case 2: eng_.WaitFor(var, 1us); break;
        default: eng_.WaitAllFor(10us);
      }
    } catch (const OpError&) {
    }
  }

  void One(Random& random, std::deque<HeldOp>& held) {
    Var temp;
    uint32_t temp_index = 0;
    if (random.OneIn(6)) {
      const uint32_t t = next_temp_.fetch_add(1);
      if (t < kTemps) {
        temp_index = shape_.vars + t;
        temp = eng_.NewVar("temp");
      }
    }
    OpRecord* record = oracle_.NewRecord(RandomUses(random, temp ? &temp_index : nullptr));
    auto sets = std::make_shared<Sets>(Split(record->uses, temp));
    const bool fails = shape_.fails && random.OneIn(20);
    const bool nested = shape_.nested && random.OneIn(10);
    const auto body = [this, record, sets, fails, nested](RunContext& ctx) {
      if (nested) Nested();
      Body(ctx, record, *sets, fails);
    };
    const auto async = [this, body](RunContext& ctx, Completion done) {
      body(ctx);
      completers_.Post([done]() mutable { done(); });
    };
    const Placement place = shape_.bulk && random.OneIn(2) ? Gpu(0)
                            : random.OneIn(10)             ? Io()
                            : random.OneIn(20)             ? CopyIn()
                                                           : Cpu();
    const int priority = random.OneIn(4) ? static_cast<int>(random.Below(5)) - 2 : 0;
    const bool always = shape_.fails && random.OneIn(8);
    CancelScope* const scope = shape_.fails && random.OneIn(30) ? &cancelled_ : nullptr;
#define DESC                 \
  {.name = "op",             \
   .reads = sets->reads,     \
   .updates = sets->updates, \
   .writes = sets->writes,   \
   .place = place,           \
   .priority = priority,     \
   .run_always = always,     \
   .cancel = scope}
    record->push_begin = oracle_.Tick();
    switch (random.Below(10)) {
      case 0:
      case 1: eng_.PushAsync(DESC, async); break;
      case 2: held.push_back(eng_.PushHeld(DESC, body)); break;
      case 3: {
        Operator op = eng_.NewOperator(DESC, body);
        eng_.Push(op);
        break;
      }
      case 4:
        while (!eng_.TryPush(DESC, body)) {
          held.clear();
          Wait(random);
        }
        break;
      case 5:
        if (shape_.fails) eng_.ClearError(vars_[random.Below(shape_.vars)]);
        [[fallthrough]];
      default: eng_.Push(DESC, body);
    }
#undef DESC
    record->push_end = oracle_.Tick();
    if (temp && random.OneIn(2)) eng_.Delete(temp);  // else the handle in the closure ends it
  }

  // Inside an op: pushes on a Var of its own, and waits for it.
  void Nested() {
    Var mine = eng_.NewVar("mine");
    int x = 0;
    eng_.Push({.name = "inner", .writes = {mine}}, [&x] { x = 1; });
    eng_.Wait(mine);
    if (x != 1) std::abort();
  }

  const Shape shape_;
  const uint64_t seed_;
  Oracle oracle_;
  Completers completers_;
  CancelScope cancelled_;
  std::atomic<uint32_t> next_temp_{0};
  Engine eng_;  // ends before what its ops use
  std::vector<Var> vars_;
};

}  // namespace

Shape RandomShape(Random& random) {
  Shape s;
  constexpr int kWorkers[] = {0, 1, 2, 3, 4, 8};
  s.workers = kWorkers[random.Below(6)];
  s.pushers = 1 + static_cast<int>(random.Below(random.OneIn(3) ? 16 : 4));
  s.ops = (kSanitized ? 1200 : 6000) / s.pushers;
  s.vars = 1 + static_cast<uint32_t>(random.Below(random.OneIn(2) ? 4 : 40));
  s.max_pending = random.OneIn(3) ? 1 + random.Below(32) : random.OneIn(2) ? 256 : 16384;
  s.policy = random.OneIn(6) ? Policy::kNaive : Policy::kThreaded;
  s.fails = random.OneIn(2);
  s.nested = random.OneIn(3);
  return s;
}

std::string Describe(const Shape& s) {
  return "workers " + std::to_string(s.workers) + ", pushers " + std::to_string(s.pushers) + ", ops " +
         std::to_string(s.ops) + ", vars " + std::to_string(s.vars) + ", max_pending " + std::to_string(s.max_pending) +
         (s.policy == Policy::kNaive ? ", naive" : "") + (s.fails ? ", fails" : "") + (s.nested ? ", nested" : "") +
         (s.bulk ? ", bulk " + std::to_string(s.bulk) : "");
}

std::string RunProgram(const Shape& shape, uint64_t seed) { return Program(shape, seed).Run(); }

}  // namespace engine::test
