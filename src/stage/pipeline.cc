// Stage: a StagingArea, and the threads that stream its source.
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
#include "turns.h"

namespace engine {
// The stream of a stage between two restarts. The stage's threads share it, so that nothing of it reaches the next
// stream.
struct StageStream {
  StageStream(const StageOptions& options, detail::StageSource from)
      : area(options), source(std::move(from)), host(area.options().host.get()) {}
  void Cancel() {
    area.Cancel();
    pulling.Cancel();
  }

  StagingArea area;
  detail::StageSource source;
  StageHost* const host;
  detail::Turns pulling;  // taken while `pull` runs and its ticket is drawn
  // Taken by the thread that starts the producers. If that fails, another call may try; nobody waits for items under
  // it.
  std::mutex starting;
  detail::Mutex mu;  // taken also under the host's lock, so nothing is waited for under it
  detail::CondVar ended;
  int live GUARDED_BY(mu) = 0;
  bool joined GUARDED_BY(mu) = false;               // no more threads are started
  std::vector<std::thread> threads GUARDED_BY(mu);  // if the stage has no host
  // release, under `starting`; partner: the acquire in Start. Whoever sees it set need not take the lock.
  std::atomic<bool> started{false};
};
using StreamPtr = std::shared_ptr<StageStream>;

namespace {

using detail::kNever;
using detail::MutexLock;

void Produce(const StreamPtr& stream);

thread_local const StageStream* produced_here = nullptr;  // of which this thread is a producer

// UsageError in the stream's own source, which would wait for itself for ever.
void RefuseInSource(const StageStream& stream, const char* call) {
  if (produced_here == &stream)
    throw UsageError(stream.area.label() + "its own source calls " + call +
                     ", which waits until that source has returned; call it elsewhere");
}

void Ended(StageStream& stream) {
  MutexLock lock(stream.mu);
  if (--stream.live == 0) stream.ended.NotifyAll();
}

// Starts one more producer. Throws std::system_error if the system refuses a thread, and std::bad_alloc.
void Spawn(const StreamPtr& stream) {
  const std::string& name = stream->area.options().name;
  {
    MutexLock lock(stream->mu);
    if (stream->joined) return;
    if (!stream->host) {
      stream->threads.emplace_back([stream] {
        pthread_setname_np(pthread_self(), stream->area.options().name.substr(0, 15).c_str());
        Produce(stream);
      });
    }
    ++stream->live;
  }
  if (!stream->host) return;
  try {
    stream->host->Spawn(name, [stream] { Produce(stream); });
  } catch (...) {
    Ended(*stream);
    throw;
  }
}

// It may be refused: fewer producers are slower, and make the same items.
void SpawnOneMore(const StreamPtr& stream) try { Spawn(stream); } catch (const std::system_error&) {
  stream->area.SpawnRefused();
} catch (const std::bad_alloc&) {
  stream->area.SpawnRefused();
}

void Start(const StreamPtr& stream) {
  if (stream->started.load(std::memory_order_acquire)) return;
  std::unique_lock<std::mutex> starting(stream->starting, std::defer_lock);
  if (!starting.try_lock()) StageHost::Blocking(stream->host, [&] { starting.lock(); });
  if (stream->started.load(std::memory_order_relaxed)) return;  // relaxed: the lock orders it
  try {
    Spawn(stream);
  } catch (const std::system_error& e) {
    throw Error(stream->area.label() + "the system refused a thread for its source: " + e.what());
  }
  stream->started.store(true, std::memory_order_release);
  for (int i = 1; i < stream->area.options().num_threads; ++i) SpawnOneMore(stream);
}

// The turn of a producer in a source that has a `pull`; without one, nothing.
class Pulling {
 public:
  Pulling(StageStream& stream, bool serial) : turns_(stream.pulling), mine_(serial && turns_.Enter(stream.host)) {}
  ~Pulling() { Leave(); }
  Pulling(const Pulling&) = delete;
  bool mine() const { return mine_; }
  void Leave() NO_THREAD_SAFETY_ANALYSIS {
    if (std::exchange(mine_, false)) turns_.Leave();
  }

 private:
  detail::Turns& turns_;
  bool mine_;
};

// Makes one item. False: this producer ends.
bool ProduceOne(const StreamPtr& stream) {
  StagingArea& area = stream->area;
  uint64_t ticket;
  StageItem item;
  const bool serial = static_cast<bool>(stream->source.pull);
  Pulling pulling(*stream, serial);
  if (serial && !pulling.mine()) return false;  // it was cancelled
  StagingArea::Turn turn = area.Begin(&ticket, stream->host ? StagingArea::kNow : StagingArea::kNever);
  if (turn == StagingArea::Turn::kBusy) StageHost::Blocking(stream->host, [&] { turn = area.Begin(&ticket); });
  switch (turn) {
    case StagingArea::Turn::kOver: return false;
    case StagingArea::Turn::kSpawn:
      pulling.Leave();
      SpawnOneMore(stream);  // only autotune asks for more producers, and does without
      return true;
    case StagingArea::Turn::kBusy: return true;
    case StagingArea::Turn::kItem: break;
  }
  try {
    bool more = true;
    if (serial) {
      more = stream->source.pull(&item);
      if (!more) area.End(ticket, true);
      pulling.Leave();
    }
    if (!more) return true;
    if (stream->source.make && !stream->source.make(&item)) {
      area.End(ticket, serial);
      return true;
    }
  } catch (...) {
    area.Settle(ticket, std::current_exception(), serial);
    return true;
  }
  if (!area.Put(ticket, std::move(item))) StageHost::Blocking(stream->host, [&] { area.AwaitRoom(ticket); });
  return true;
}

void Produce(const StreamPtr& stream) {
  produced_here = stream.get();
  try {
    stream->area.Enter();
    while (ProduceOne(stream)) {
    }
  } catch (const abi::__forced_unwind&) {  // a front end's interpreter has ended
    throw;
  } catch (...) {  // no memory for one more item, say; what is not an item's own error is the stream's
    stream->area.Fail(std::current_exception());
  }
  produced_here = nullptr;
  Ended(*stream);
}

// Waits until no producer is inside the source; returns false at `until`. Gives a host its thread back now and then: no cancel
// ends this wait, and an interpreter that ends cannot wait for a source that does not return.
bool AwaitEnd(StageStream& stream, detail::Clock::time_point until) {
  constexpr auto kAttempt = std::chrono::milliseconds(50);
  bool ended = false;
  const auto attempt = [&](StageHost::Time most) {
    const auto end = std::min({most, until, stream.host ? detail::Clock::now() + kAttempt : kNever});
    MutexLock lock(stream.mu);
    while (stream.live > 0 && detail::Clock::now() < end) stream.ended.WaitUntil(stream.mu, end);
    ended = stream.live == 0;
    return ended || detail::Clock::now() >= until;
  };
  StageHost::AwaitOn(stream.host, attempt);
  return ended;
}

void Join(StageStream& stream) {
  {
    MutexLock lock(stream.mu);
    stream.joined = true;
  }
  AwaitEnd(stream, kNever);
  std::vector<std::thread> threads;
  {
    MutexLock lock(stream.mu);
    threads.swap(stream.threads);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

struct StageBase::State {
  State(StageOptions given, detail::StageSource from)
      : options(std::move(given)),
        source(std::make_shared<const detail::StageSource>(std::move(from))),
        in_a_child(source.get()) {
    stream = std::make_shared<StageStream>(options, *source);
    options = stream->area.options();  // with the name that the area generated
  }
  std::shared_ptr<StageStream> Current() {
    if (detail::ForkGeneration() != generation) {
      throw ForkedWhilePending(detail::StageLabel(options) +
                               "its producers stayed in the process that forked; restart it to read here");
    }
    detail::MutexLock lock(mu);
    return stream;
  }

  StageOptions options;
  detail::Mutex mu;
  std::shared_ptr<const detail::StageSource> source GUARDED_BY(mu);  // as the caller gave it; each stream uses a copy
  // The same, for a fork's child, where another thread may have been in the middle of a Restart, and `mu` may be locked: what it
  // points to is whole at any moment. release: the new source. Partner: none but the fork, which copies all memory.
  std::atomic<const detail::StageSource*> in_a_child;
  const uint32_t generation = detail::ForkGeneration();
  std::shared_ptr<StageStream> stream GUARDED_BY(mu);
};

StageBase::StageBase(StageOptions options, detail::StageSource source)
    : state_(new State(std::move(options), std::move(source))) {}

StageBase::~StageBase() {
  State* const state = Now();
  if (detail::ForkGeneration() != state->generation) return;  // mutant: stage_ends_in_a_child
  const auto stream = state->Current();
  stream->Cancel();
  if (!stream->host) Join(*stream);
  delete state;
}

// acquire: the state that another thread of a fork's child has made. Partner: the exchange in Restart.
StageBase::State* StageBase::Now() const { return state_.load(std::memory_order_acquire); }

void StageBase::Start() { engine::Start(Now()->Current()); }

void StageBase::Close() { Now()->Current()->area.Close(); }
void StageBase::Cancel() { Now()->Current()->Cancel(); }

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
    // The state before is never destroyed: its threads, and the locks that they have taken, are the parent's.
    auto anew = std::make_unique<State>(state->options, source);
    if (state_.compare_exchange_strong(state, anew.get(), std::memory_order_acq_rel)) {
      static_cast<void>(anew.release());
      return;
    }
    // Another thread was first, and ours comes after it.
  }
  // First what may be refused: then nothing has changed.
  CheckRestart();
  auto given = std::make_shared<const detail::StageSource>(std::move(source));  // then: the one before
  auto next = std::make_shared<StageStream>(state->options, *given);
  // Again if another thread has restarted it meanwhile, and that stream may have begun.
  for (std::shared_ptr<StageStream> before;;) {
    before = state->Current();
    before->Cancel();
    Join(*before);
    detail::MutexLock lock(state->mu);
    if (state->stream != before) continue;
    state->in_a_child.store(given.get(), std::memory_order_release);
    state->source.swap(given);
    state->stream.swap(next);
    return;
  }
}

bool StageBase::JoinFor(Timeout timeout) {
  const auto stream = Now()->Current();
  RefuseInSource(*stream, "join");
  return AwaitEnd(*stream, detail::After(timeout));
}

void StageBase::CheckRestart() const {
  State* const state = Now();
  if (detail::ForkGeneration() == state->generation) RefuseInSource(*state->Current(), "restart");
}

StageStats StageBase::stats() const { return Now()->Current()->area.stats(); }
const StageOptions& StageBase::options() const { return Now()->options; }

StagingArea::Taken StageBase::TakeItem(StageItem* item, Timeout timeout) {
  State* const state = Now();
  const auto stream = state->Current();
  engine::Start(stream);
  StageClock& clock = *state->options.clock;
  const auto now = clock.Now();
  const auto most = timeout.nanoseconds();
  const auto deadline = most <= most.zero()                    ? StagingArea::kNow
                        : most > StageClock::Time::max() - now ? StagingArea::kNever
                                                               : now + most;
  if (!stream->host) return stream->area.Take(item, deadline);
  StagingArea::Taken taken;
  const auto attempt = [&](StageHost::Time until) {
    taken = stream->area.Take(item, std::min(until, deadline), now);
    return taken != StagingArea::Taken::kTimeout || clock.Now() >= deadline;
  };
  stream->host->Take(std::ref(attempt));
  return taken;
}

}  // namespace engine
