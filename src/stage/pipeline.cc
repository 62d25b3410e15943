// Pipeline: a StagingArea with threads that run a source.
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "area_state.h"
#include "engine/stage.h"

namespace engine {
namespace {

// One run: its threads share it, so that nothing of it can reach the next one.
struct PipelineRun {
  PipelineRun(const StageOptions& options, detail::StageSource from) : area(options), source(std::move(from)) {}

  StagingArea area;
  detail::StageSource source;
  std::mutex pulling;  // held while `pull` runs, and while its ticket is drawn
  detail::StageMutex mu;
  std::condition_variable ended;
  int live STAGE_TSA(guarded_by(mu)) = 0;
  std::vector<std::thread> threads STAGE_TSA(guarded_by(mu));
  // Set with mu held. release, with the acquire in Start: whoever sees it need not take the lock.
  std::atomic<bool> started{false};
};

void Produce(const std::shared_ptr<PipelineRun>& run);

void Spawn(const std::shared_ptr<PipelineRun>& run) STAGE_TSA(requires_capability(run->mu)) {
  run->threads.emplace_back([run] {
    const std::string name = run->area.options().name.substr(0, 15);
    pthread_setname_np(pthread_self(), name.c_str());
    run->area.Enter();
    Produce(run);
    detail::StageLock lock(run->mu);
    if (--run->live == 0) run->ended.notify_all();
  });
  ++run->live;
}

void Start(const std::shared_ptr<PipelineRun>& run) {
  if (run->started.load(std::memory_order_acquire)) return;
  detail::StageLock lock(run->mu);
  if (run->started.exchange(true, std::memory_order_acq_rel)) return;
  for (int i = 0; i < run->area.options().num_threads; ++i) {
    try {
      Spawn(run);
    } catch (const std::system_error& e) {
      if (run->live != 0) return;  // fewer are slower; they make the same items
      run->started.store(false, std::memory_order_release);
      throw Error(detail::StageLabel(run->area.options()) + "the system refused a thread for its source: " + e.what());
    }
  }
}

// One item. False: this producer ends.
bool ProduceOne(const std::shared_ptr<PipelineRun>& run) {
  StagingArea& area = run->area;
  uint64_t ticket;
  StageItem item;
  const bool serial = static_cast<bool>(run->source.pull);
  std::unique_lock<std::mutex> pulling;
  if (serial) pulling = std::unique_lock(run->pulling);
  switch (area.Begin(&ticket)) {
    case StagingArea::Turn::kOver: return false;
    case StagingArea::Turn::kSpawn: {
      detail::StageLock lock(run->mu);
      try {
        Spawn(run);
      } catch (const std::system_error&) {  // only autotune asks for more: it does without
      }
      return true;
    }
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
    if (!run->source.make(&item)) {
      area.End(ticket, serial);
      return true;
    }
  } catch (...) {
    area.Settle(ticket, std::current_exception(), serial);
    return true;
  }
  if (!area.Put(ticket, std::move(item))) area.AwaitRoom(ticket);
  return true;
}

void Produce(const std::shared_ptr<PipelineRun>& run) {
  while (ProduceOne(run)) {
  }
}

}  // namespace

struct StageBase::State {
  State(StageOptions given, detail::StageSource from) : options(std::move(given)), source(std::move(from)) {
    run = std::make_shared<PipelineRun>(options, source);
    options = run->area.options();  // with the name it was given
  }
  std::shared_ptr<PipelineRun> Current() {
    if (detail::ForkGeneration() != generation) {
      throw ForkedWhilePending(detail::StageLabel(options) +
                               "its producers stayed in the process that forked; restart it to read here");
    }
    detail::StageLock lock(mu);
    return run;
  }

  StageOptions options;
  detail::StageMutex mu;
  detail::StageSource source STAGE_TSA(guarded_by(mu));  // as it was given: each run works on a copy
  const uint32_t generation = detail::ForkGeneration();
  std::shared_ptr<PipelineRun> run STAGE_TSA(guarded_by(mu));
};

namespace {

void Join(PipelineRun& run) {
  std::vector<std::thread> threads;
  for (;;) {
    {
      detail::StageLock lock(run.mu);
      run.started.store(true, std::memory_order_release);  // nobody starts it any more
      threads.swap(run.threads);
    }
    if (threads.empty()) return;
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
}

}  // namespace

StageBase::StageBase(StageOptions options, detail::StageSource source)
    : state_(std::make_unique<State>(std::move(options), std::move(source))) {}

StageBase::~StageBase() {
  if (detail::ForkGeneration() != state_->generation) {
    static_cast<void>(state_.release());  // see Restart
    return;
  }
  const auto run = state_->Current();
  run->area.Cancel();
  Join(*run);
}

void StageBase::Start() { engine::Start(state_->Current()); }

void StageBase::Close() { state_->Current()->area.Close(); }
void StageBase::Cancel() { state_->Current()->area.Cancel(); }

// In the child of a fork there is one thread, and the locks may never be released.
void StageBase::Restart() STAGE_TSA(no_thread_safety_analysis) {
  if (detail::ForkGeneration() != state_->generation) {
    Restart(state_->source);
  } else {
    const auto source = [&] {
      detail::StageLock lock(state_->mu);
      return state_->source;
    };
    Restart(source());
  }
}

void StageBase::Restart(detail::StageSource source) {
  if (detail::ForkGeneration() != state_->generation) {
    const StageOptions options = state_->options;
    static_cast<void>(state_.release());  // its threads, and whatever locks they held, are the parent's
    state_ = std::make_unique<State>(options, std::move(source));
    return;
  }
  const auto before = state_->Current();
  before->area.Cancel();
  Join(*before);
  detail::StageLock lock(state_->mu);
  state_->source = std::move(source);
  state_->run = std::make_shared<PipelineRun>(state_->options, state_->source);
}

bool StageBase::JoinFor(Timeout timeout) {
  const auto run = state_->Current();
  const auto over = [&]() STAGE_TSA(no_thread_safety_analysis) { return run->live == 0; };
  const auto now = std::chrono::steady_clock::now();
  detail::StageLock lock(run->mu);
  if (timeout.nanoseconds() <= StageClock::Time::max() - now)
    return run->ended.wait_until(lock.native(), now + timeout.nanoseconds(), over);
  run->ended.wait(lock.native(), over);
  return true;
}

StageStats StageBase::stats() const { return state_->Current()->area.stats(); }
const StageOptions& StageBase::options() const { return state_->options; }

StagingArea::Taken StageBase::TakeItem(StageItem* item, Timeout timeout) {
  const auto run = state_->Current();
  engine::Start(run);
  const auto most = timeout.nanoseconds();
  if (most <= most.zero()) return run->area.Take(item, StagingArea::kNow);
  const auto now = state_->options.clock->Now();
  if (most > StageClock::Time::max() - now) return run->area.Take(item);
  return run->area.Take(item, now + most);
}

}  // namespace engine
