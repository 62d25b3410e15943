// Stage: a StagingArea, and the threads that run its source.
#include <cxxabi.h>
#include <pthread.h>

#include <atomic>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "area_state.h"
#include "engine/spi/stage_host.h"
#include "engine/stage.h"

namespace engine {
// One run of a stage. Its threads share it, so that nothing of it reaches the next run.
struct PipelineRun {
  PipelineRun(const StageOptions& options, detail::StageSource from)
      : area(options), source(std::move(from)), host(area.options().host.get()) {}

  StagingArea area;
  detail::StageSource source;
  StageHost* const host;
  std::mutex pulling;  // held while `pull` runs and its ticket is drawn
  // Taken by the thread that starts the producers. If that fails, another call may try; nobody waits for items under
  // it.
  std::mutex starting;
  detail::Mutex mu;  // taken also with the host's lock held, so nothing is waited for under it
  detail::CondVar ended;
  int live GUARDED_BY(mu) = 0;
  bool joined GUARDED_BY(mu) = false;               // no more threads are started
  std::vector<std::thread> threads GUARDED_BY(mu);  // if the stage has no host
  // release, with `starting` held; partner: the acquire in Start. Whoever sees it set need not take the lock.
  std::atomic<bool> started{false};
};
using RunPtr = std::shared_ptr<PipelineRun>;

namespace {

using detail::kNever;
using detail::MutexLock;

void Produce(const RunPtr& run);

void Ended(PipelineRun& run) {
  MutexLock lock(run.mu);
  if (--run.live == 0) run.ended.NotifyAll();
}

// Starts one more producer. Throws std::system_error if the system refuses a thread, and std::bad_alloc.
void Spawn(const RunPtr& run) {
  const std::string& name = run->area.options().name;
  {
    MutexLock lock(run->mu);
    if (run->joined) return;
    if (!run->host) {
      run->threads.emplace_back([run] {
        pthread_setname_np(pthread_self(), run->area.options().name.substr(0, 15).c_str());
        Produce(run);
      });
    }
    ++run->live;
  }
  if (!run->host) return;
  try {
    run->host->Spawn(name, [run] { Produce(run); });
  } catch (...) {
    Ended(*run);
    throw;
  }
}

// It may be refused: fewer producers are slower, and make the same items.
void SpawnOneMore(const RunPtr& run) try { Spawn(run); } catch (const std::system_error&) {
  run->area.SpawnRefused();
} catch (const std::bad_alloc&) {
  run->area.SpawnRefused();
}

void Start(const RunPtr& run) {
  if (run->started.load(std::memory_order_acquire)) return;
  std::unique_lock<std::mutex> starting(run->starting, std::defer_lock);
  if (!starting.try_lock()) StageHost::Blocking(run->host, [&] { starting.lock(); });
  if (run->started.load(std::memory_order_relaxed)) return;  // relaxed: the lock orders it
  try {
    Spawn(run);
  } catch (const std::system_error& e) {
    throw Error(run->area.label() + "the system refused a thread for its source: " + e.what());
  }
  run->started.store(true, std::memory_order_release);
  for (int i = 1; i < run->area.options().num_threads; ++i) SpawnOneMore(run);
}

// Makes one item. False: this producer ends.
bool ProduceOne(const RunPtr& run) {
  StagingArea& area = run->area;
  uint64_t ticket;
  StageItem item;
  const bool serial = static_cast<bool>(run->source.pull);
  std::unique_lock<std::mutex> pulling(run->pulling, std::defer_lock);
  if (serial && !pulling.try_lock()) StageHost::Blocking(run->host, [&] { pulling.lock(); });
  StagingArea::Turn turn = area.Begin(&ticket, run->host ? StagingArea::kNow : StagingArea::kNever);
  if (turn == StagingArea::Turn::kBusy) StageHost::Blocking(run->host, [&] { turn = area.Begin(&ticket); });
  switch (turn) {
    case StagingArea::Turn::kOver: return false;
    case StagingArea::Turn::kSpawn:
      if (serial) pulling.unlock();
      SpawnOneMore(run);  // only autotune asks for more producers, and does without
      return true;
    case StagingArea::Turn::kBusy: return true;
    case StagingArea::Turn::kItem: break;
  }
  try {
    bool more = true;
    if (serial) {
      more = run->source.pull(&item);
      if (!more) area.End(ticket, true);
      pulling.unlock();
    }
    if (!more) return true;
    if (run->source.make && !run->source.make(&item)) {
      area.End(ticket, serial);
      return true;
    }
  } catch (...) {
    area.Settle(ticket, std::current_exception(), serial);
    return true;
  }
  bool given = false;
  const auto put = [&] {
    given = true;
    return area.Put(ticket, std::move(item));
  };
  bool go_on;
  try {
    go_on = run->host ? run->host->Put(std::ref(put)) : put();
  } catch (...) {
    if (!given) area.Fail(ticket, std::current_exception());
    throw;
  }
  if (!go_on) StageHost::Blocking(run->host, [&] { area.AwaitRoom(ticket); });
  return true;
}

void Produce(const RunPtr& run) {
  try {
    run->area.Enter();
    while (ProduceOne(run)) {
    }
  } catch (const abi::__forced_unwind&) {  // a front end's interpreter has ended
    throw;
  } catch (...) {  // no memory for one more item, say; what is not an item's own error is the stream's
    run->area.Fail(std::current_exception());
  }
  Ended(*run);
}

// Waits until no producer is inside the source; returns false at `until`.
bool AwaitEnd(PipelineRun& run, detail::Clock::time_point until) {
  bool ended = false;
  const auto attempt = [&](StageHost::Time most) {
    const auto end = std::min(most, until);
    MutexLock lock(run.mu);
    while (run.live > 0 && detail::Clock::now() < end) run.ended.WaitUntil(run.mu, end);
    ended = run.live == 0;
    return ended || detail::Clock::now() >= until;
  };
  StageHost::AwaitOn(run.host, attempt);
  return ended;
}

void Join(PipelineRun& run) {
  {
    MutexLock lock(run.mu);
    run.joined = true;
  }
  AwaitEnd(run, kNever);
  std::vector<std::thread> threads;
  {
    MutexLock lock(run.mu);
    threads.swap(run.threads);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

struct StageBase::State {
  State(StageOptions given, detail::StageSource from)
      : options(std::move(given)),
        source(std::make_shared<const detail::StageSource>(std::move(from))),
        in_a_child(source.get()) {
    run = std::make_shared<PipelineRun>(options, *source);
    options = run->area.options();  // with the name that the area generated
  }
  std::shared_ptr<PipelineRun> Current() {
    if (detail::ForkGeneration() != generation) {
      throw ForkedWhilePending(detail::StageLabel(options) +
                               "its producers stayed in the process that forked; restart it to read here");
    }
    detail::MutexLock lock(mu);
    return run;
  }

  StageOptions options;
  detail::Mutex mu;
  std::shared_ptr<const detail::StageSource> source GUARDED_BY(mu);  // as the caller gave it; each run uses a copy
  // The same, for a fork's child, where another thread may have been in the middle of a Restart, and `mu` may be locked: what it
  // points to is whole at any moment. release: the new source. Partner: none but the fork, which copies all memory.
  std::atomic<const detail::StageSource*> in_a_child;
  const uint32_t generation = detail::ForkGeneration();
  std::shared_ptr<PipelineRun> run GUARDED_BY(mu);
};

StageBase::StageBase(StageOptions options, detail::StageSource source)
    : state_(new State(std::move(options), std::move(source))) {}

StageBase::~StageBase() {
  State* const state = Now();
  if (detail::ForkGeneration() != state->generation) return;  // mutant: stage_ends_in_a_child
  const auto run = state->Current();
  run->area.Cancel();
  if (!run->host) Join(*run);
  delete state;
}

// acquire: the state that another thread of a fork's child has made. Partner: the exchange in Restart.
StageBase::State* StageBase::Now() const { return state_.load(std::memory_order_acquire); }

void StageBase::Start() { engine::Start(Now()->Current()); }

void StageBase::Close() { Now()->Current()->area.Close(); }
void StageBase::Cancel() { Now()->Current()->area.Cancel(); }

void StageBase::Restart() {
  State* const state = Now();
  if (detail::ForkGeneration() != state->generation) return Restart(*state->in_a_child.load(std::memory_order_acquire));
  const auto source = [&] {
    detail::MutexLock lock(state->mu);
    return state->source;
  };
  Restart(*source());
}

void StageBase::Restart(detail::StageSource source) {
  State* state = Now();
  if (detail::ForkGeneration() != state->generation) {
    // The state before is never destroyed: its threads, and the locks that they hold, are the parent's.
    auto anew = std::make_unique<State>(state->options, source);
    if (state_.compare_exchange_strong(state, anew.get(), std::memory_order_acq_rel)) {
      static_cast<void>(anew.release());
      return;
    }
    // Another thread was first, and ours comes after it.
  }
  // First what may be refused: then nothing has changed.
  auto given = std::make_shared<const detail::StageSource>(std::move(source));  // then: the one before
  auto next = std::make_shared<PipelineRun>(state->options, *given);
  // Again if another thread has restarted it meanwhile, and that run may have begun.
  for (std::shared_ptr<PipelineRun> before;;) {
    before = state->Current();
    before->area.Cancel();
    Join(*before);
    detail::MutexLock lock(state->mu);
    if (state->run != before) continue;
    state->in_a_child.store(given.get(), std::memory_order_release);
    state->source.swap(given);
    state->run.swap(next);
    return;
  }
}

bool StageBase::JoinFor(Timeout timeout) { return AwaitEnd(*Now()->Current(), detail::After(timeout)); }

StageStats StageBase::stats() const { return Now()->Current()->area.stats(); }
const StageOptions& StageBase::options() const { return Now()->options; }

StagingArea::Taken StageBase::TakeItem(StageItem* item, Timeout timeout) {
  State* const state = Now();
  const auto run = state->Current();
  engine::Start(run);
  StageClock& clock = *state->options.clock;
  const auto now = clock.Now();
  const auto most = timeout.nanoseconds();
  const auto deadline = most <= most.zero()                    ? StagingArea::kNow
                        : most > StageClock::Time::max() - now ? StagingArea::kNever
                                                               : now + most;
  if (!run->host) return run->area.Take(item, deadline);
  StagingArea::Taken taken;
  const auto attempt = [&](StageHost::Time until) {
    taken = run->area.Take(item, std::min(until, deadline), now);
    return taken != StagingArea::Taken::kTimeout || clock.Now() >= deadline;
  };
  run->host->Take(std::ref(attempt));
  return taken;
}

}  // namespace engine
