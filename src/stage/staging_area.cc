#include "engine/spi/staging_area.h"

#include <algorithm>
#include <thread>

#include "area_state.h"
#include "engine/trace.h"
#include "stage_lane.h"

namespace engine {
namespace detail {
namespace {

using Time = StagingArea::Time;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

int MostProducers(const StageOptions& options) { return options.autotune ? options.max_threads : options.num_threads; }

}  // namespace

AreaState::AreaState(StageOptions given)
    : options(Checked(std::move(given))),
      label(StageLabel(options)),
      clock(*options.clock),
      buffer({.capacity = options.capacity,
              .capacity_bytes = options.capacity_bytes,
              .threads = static_cast<size_t>(options.num_threads),
              .ordered = options.ordered,
              .timeout = options.timeout},
             clock),
      producers(options.num_threads),
      backoff(options.ignored_budget) {
  if (options.pool) pool = FindStagePool(options.pool);
  for (int i = 0; i < MostProducers(options); ++i) AddSleeper();
  if (options.autotune) {
    tuning.emplace(Tuning{.tuner = Autotune({.max_capacity = options.max_capacity,
                                             .capacity_bytes = options.capacity_bytes,
                                             .max_threads = options.max_threads},
                                            options.capacity, options.num_threads),
                          .begin = clock.Now()});
  }
}

void AreaState::CheckFork() const {
  if (ForkGeneration() != generation) {
    throw ForkedWhilePending(label + "its producers stayed in the process that forked; restart it to read here");
  }
}

void AreaState::AddSleeper() {
  if (sleepers.size() == sleepers.capacity()) {
    const size_t count = std::max<size_t>(4, 2 * sleepers.size());
    for (Sleepers* list : {&takers, &beginners, &without_room, &idle}) list->reserve(count);
    sleepers.reserve(count);
  }
  idle.push_back(sleepers.emplace_back(std::make_unique<StageSleeper>()).get());
}

StageSleeper* AreaState::NewSleeper() {
  if (idle.empty()) AddSleeper();  // more threads produce than the options say
  StageSleeper* sleeper = idle.back();
  idle.pop_back();
  sleeper->woken = false;
  return sleeper;
}

void AreaState::Sleep(Sleepers& list, Time deadline) {
  StageSleeper* sleeper = NewSleeper();
  list.push_back(sleeper);
  while (!sleeper->woken && (deadline == StagingArea::kNever || clock.Now() < deadline)) {
    mu.WithNative([&](auto& lock) { clock.WaitUntil(sleeper->cv, lock, deadline); });
  }
  if (!sleeper->woken) std::erase(list, sleeper);
  idle.push_back(sleeper);
}

AreaState::Visit::Visit(AreaState& state) : state_(state) { state_.mu.Lock(); }

// Wakes those who can go on after this visit's changes: consumers, if there is an item or an end; producers that want
// to begin, if there is a place and no pause, of which each waits for the end; producers that wait for room, if there is
// room. One of each kind is enough, because a woken thread ends a visit of its own and wakes the next.
AreaState::Visit::~Visit() NO_THREAD_SAFETY_ANALYSIS {
  AreaState& s = state_;
  constexpr int kMost = 6;
  StageSleeper* wake[kMost];
  int count = 0;
  const auto first_of = [&](Sleepers& list) {
    wake[count++] = list.front();
    list.front()->woken = true;
    list.erase(list.begin());
  };
  if (!s.takers.empty() && s.buffer.CanTake()) first_of(s.takers);
  if (!s.beginners.empty() && (s.buffer.stopped() || (s.buffer.HasPlace() && !s.Pauses()))) first_of(s.beginners);
  for (const uint64_t place : s.buffer.released) {
    const auto found = std::find_if(s.without_room.begin(), s.without_room.end(),
                                    [&](const StageSleeper* sleeper) { return sleeper->place == place; });
    if (found == s.without_room.end()) continue;
    (*found)->woken = true;  // stays in the list until its producer has seen it
    if (count < kMost) {
      wake[count++] = *found;
    } else {
      (*found)->cv.notify_one();
    }
  }
  s.buffer.released.clear();
  bool more = !s.buffer.trash.empty();
  s.mu.Unlock();
  for (int i = 0; i < count; ++i) wake[i]->cv.notify_one();
  // A few at a time, because the list keeps its memory, which Begin has reserved.
  while (more) {
    StageItem some[16];  // destroyed outside the lock
    const MutexLock lock(s.mu);
    std::vector<StageItem>& trash = s.buffer.trash;
    const auto end = trash.begin() + std::min(std::ssize(some), std::ssize(trash));
    std::move(trash.begin(), end, some);
    trash.erase(trash.begin(), end);
    more = !trash.empty();
  }
}

std::string AreaState::RoomStory(uint64_t ticket) const {
  return label + "item " + std::to_string(ticket) + " waited " + Amount(options.timeout) +
         " for room, and nothing was taken: " + Amount(buffer.ready(), "item") + " of capacity " +
         std::to_string(buffer.limits().capacity) + " buffered, " + std::to_string(buffer.delivered()) +
         " delivered; take them, raise capacity or timeout, or choose on_timeout drop";
}

std::string AreaState::TakeStory() const {
  std::string text = label + "no item within " + Amount(options.take_timeout) + ": ";
  if (buffer.making() == 0) {
    text += "no producer is making one";
  } else {
    text += "the source has not returned (" + Amount(buffer.making(), "item") + " in the making)";
  }
  return text + "; " + std::to_string(buffer.delivered()) + " delivered";
}

void AreaState::Tune() {
  Tuning& t = *tuning;
  if (++t.takes < t.tuner.window()) return;
  const Time now = clock.Now();
  const auto seconds = [](nanoseconds time) { return std::chrono::duration<double>(time).count(); };
  const size_t ready = buffer.ready();
  t.tuner.Observe({.takes = t.takes,
                   .seconds = seconds(now - t.begin),
                   .consumer_wait = seconds(consumer_wait - t.consumer_wait),
                   .producer_wait = seconds(producer_wait - t.producer_wait),
                   .item_bytes = ready ? buffer.ready_bytes() / ready : 0});
  buffer.Grow(t.tuner.capacity(), static_cast<size_t>(t.tuner.threads()));
  t.takes = 0;
  t.begin = now;
  t.producer_wait = producer_wait;
  t.consumer_wait = consumer_wait;
}

}  // namespace detail

using detail::AreaState;
using detail::StageBuffer;

StagingArea::StagingArea(StageOptions options) : state_(std::make_unique<AreaState>(std::move(options))) {}

StagingArea::~StagingArea() {
  // In a fork's child a thread that is gone may have taken its lock.
  if (detail::ForkGeneration() != state_->generation) static_cast<void>(state_.release());
}

void StagingArea::Enter() const {
  detail::EnterStageLane(state_->options);
  NameCallerThread(state_->options.name);
}

StagingArea::Turn StagingArea::Begin(uint64_t* ticket, Time until) {
  AreaState& s = *state_;
  s.CheckFork();
  // relaxed: see AreaState::over.
  const auto give_up = [&s] { return s.over.load(std::memory_order_relaxed); };
  for (;;) {
    if (s.pool && !s.pool->Enter(until != kNow, give_up)) return give_up() ? Turn::kOver : Turn::kBusy;
    struct Seat {
      AreaState* area;
      ~Seat() { Leave(); }
      void Leave() {
        if (area) area->LeavePool();
        area = nullptr;
      }
    } seat{&s};
    AreaState::Visit visit(s);
    const int threads = static_cast<int>(s.buffer.limits().threads);
    for (; s.producers > threads && s.refused > 0; --s.refused)
      --s.producers;  // those who never came are the first to go
    Turn turn = Turn::kBusy;
    if (s.buffer.stopped()) {
      turn = Turn::kOver;
    } else if (s.producers > threads) {
      --s.producers;
      turn = Turn::kOver;
    } else if (s.producers < threads) {
      ++s.producers;
      turn = Turn::kSpawn;
    } else if (!s.Pauses()) {
      s.not_before = kNow;
      if (s.buffer.Begin(ticket) == StageBuffer::Begun::kItem) {
        seat.area = nullptr;  // kept until the item is finished
        return Turn::kItem;
      }
    }
    seat.Leave();
    if (turn != Turn::kBusy || until == kNow) return turn;
    const TracedWait traced(WaitCause::kStageFull, s.options.name);
    s.Sleep(s.beginners, s.not_before == kNow ? until : std::min(until, s.not_before));
    if (until != kNever && s.clock.Now() >= until) until = kNow;
  }
}

void StagingArea::SpawnRefused() {
  AreaState::Visit visit(*state_);
  ++state_->refused;
}

bool StagingArea::Put(uint64_t ticket, StageItem item) {
  AreaState& s = *state_;
  s.CheckFork();
  AreaState::Visit visit(s);
  s.LeavePool();
  s.backoff.Finished();
  uint64_t place;
  if (s.buffer.PutItem(ticket, std::move(item), &place) != StageBuffer::Put::kWaiting) return true;
  ++s.room_waits;
  detail::StageSleeper* sleeper = s.NewSleeper();
  sleeper->ticket = ticket;
  sleeper->place = place;
  s.without_room.push_back(sleeper);
  return false;
}

void StagingArea::AwaitRoom(uint64_t ticket) {
  AreaState& s = *state_;
  s.CheckFork();
  AreaState::Visit visit(s);
  const auto found = std::find_if(s.without_room.begin(), s.without_room.end(),
                                  [&](const detail::StageSleeper* sleeper) { return sleeper->ticket == ticket; });
  if (found == s.without_room.end())
    throw UsageError(s.label + "no item " + std::to_string(ticket) + " waits for room");
  detail::StageSleeper* sleeper = *found;
  if (!sleeper->woken) {
    const TracedWait traced(WaitCause::kStageFull, s.options.name);
    const auto begin = s.clock.Now();
    while (!sleeper->woken) {
      const auto deadline = s.buffer.RoomDeadline(sleeper->place);
      s.mu.WithNative([&](auto& lock) { s.clock.WaitUntil(sleeper->cv, lock, deadline); });
      if (sleeper->woken || !s.buffer.Expired(sleeper->place)) continue;
      if (s.options.on_timeout == OnTimeout::kDrop) {
        s.buffer.DropWaiting(sleeper->place);
      } else {
        try {
          throw StageTimeoutError(s.RoomStory(ticket));
        } catch (...) {  // that, or bad_alloc if there is no memory for it
          s.buffer.FailWaiting(sleeper->place, std::current_exception());
        }
      }
      break;
    }
    s.producer_wait += s.clock.Now() - begin;
  }
  std::erase(s.without_room, sleeper);
  s.idle.push_back(sleeper);
}

void StagingArea::Skip(uint64_t ticket, std::exception_ptr error) {
  AreaState& s = *state_;
  s.CheckFork();
  AreaState::Visit visit(s);
  s.LeavePool();
  const auto pause = s.backoff.Ignored();
  if (!pause) {
    s.buffer.Fail(ticket, std::move(error));
    return;
  }
  s.buffer.Skip(ticket);
  if (pause->count() == 0) return;
  s.not_before = s.clock.Now() + *pause;
  // Those who sleep until there is a place, or until the end of another pause, sleep until the end of this one.
  for (detail::StageSleeper* sleeper : s.beginners) {
    sleeper->woken = true;
    sleeper->cv.notify_one();
  }
  s.beginners.clear();
}

void StagingArea::End(uint64_t ticket, bool exact) {
  AreaState& s = *state_;
  s.CheckFork();
  AreaState::Visit visit(s);
  s.LeavePool();
  s.buffer.End(ticket, exact);
}

void StagingArea::Fail(uint64_t ticket, std::exception_ptr error) {
  AreaState& s = *state_;
  s.CheckFork();
  AreaState::Visit visit(s);
  s.LeavePool();
  s.buffer.Fail(ticket, std::move(error));
}

void StagingArea::Fail(std::exception_ptr error) {
  AreaState& s = *state_;
  s.CheckFork();
  AreaState::Visit visit(s);
  s.buffer.FailNext(std::move(error));
}

void StagingArea::Settle(uint64_t ticket, std::exception_ptr error, bool exact) {
  const StageOptions& filters = state_->options;
  bool closed = false, ignored = false;
  try {
    closed = filters.closed_exception_types(error);
    ignored = !closed && filters.ignored_exception_types(error);
  } catch (...) {  // a filter cannot say: what it throws is what consumers get
    error = std::current_exception();
  }
  if (closed) return End(ticket, exact);
  if (ignored) return Skip(ticket, std::move(error));
  Fail(ticket, std::move(error));
}

StagingArea::Taken StagingArea::Take(StageItem* item, Time until, Time began) {
  AreaState& s = *state_;
  s.CheckFork();
  detail::StagePool::Lend lend;  // destroyed after the visit, because the lock must not be taken then
  AreaState::Visit visit(s);
  struct Inside {
    AreaState* area = nullptr;
    Time begin{};
    ~Inside() { Leave(); }
    void Leave() NO_THREAD_SAFETY_ANALYSIS {
      if (!area) return;
      area->consumer_wait += area->clock.Now() - begin;
      --area->takers_inside;
      area = nullptr;
    }
  } inside;
  Time deadline = until;
  for (;;) {
    const StageBuffer::Take taken = s.buffer.TakeItem(item);
    if (taken != StageBuffer::Take::kEmpty) inside.Leave();
    switch (taken) {
      case StageBuffer::Take::kItem:
        if (s.tuning) s.Tune();
        return Taken::kItem;
      case StageBuffer::Take::kEnd: return Taken::kEnd;
      case StageBuffer::Take::kFailed: std::rethrow_exception(s.buffer.error());
      case StageBuffer::Take::kCancelled: throw CancelledError(s.label + "it was cancelled");
      case StageBuffer::Take::kEmpty: break;
    }
    if (until == kNow) return Taken::kTimeout;
    if (!inside.area) {
      if (s.takers_inside == s.options.num_clients) {
        throw UsageError(s.label + "more than num_clients (" + std::to_string(s.options.num_clients) +
                         ") consumers wait for items at once; raise num_clients");
      }
      ++s.takers_inside;
      inside.area = &s;
      const Time begin = inside.begin = s.clock.Now();
      if (static_cast<int>(s.sleepers.size()) < detail::MostProducers(s.options) + s.takers_inside) s.AddSleeper();
      if (s.options.take_timeout.count() > 0) {
        deadline = std::min(until, (began == kNow ? begin : began) + s.options.take_timeout);
      }
      lend.Begin();
    } else if (deadline != kNever && s.clock.Now() >= deadline) {
      inside.Leave();
      if (deadline == until) return Taken::kTimeout;
      throw StageTimeoutError(s.TakeStory());
    }
    const TracedWait traced(WaitCause::kStageEmpty, s.options.name);
    s.Sleep(s.takers, deadline);
  }
}

void StagingArea::Close() {
  AreaState& s = *state_;
  s.CheckFork();
  AreaState::Visit visit(s);
  s.buffer.Close();
}

void StagingArea::Cancel() {
  AreaState& s = *state_;
  s.CheckFork();
  // relaxed: the lock in Nudge publishes it to those who wait in the pool.
  s.over.store(true, std::memory_order_relaxed);
  {
    AreaState::Visit visit(s);
    s.buffer.Cancel();
  }
  if (s.pool) s.pool->Nudge();
}

StageStats StagingArea::stats() const {
  const AreaState& s = *state_;
  s.CheckFork();
  detail::MutexLock lock(s.mu);
  const StageBuffer& b = s.buffer;
  return {.delivered = b.delivered(),
          .position = b.position(),
          .begun = b.begun(),
          .fill = b.ready(),
          .fill_bytes = b.ready_bytes(),
          .waiting = b.waiting(),
          .capacity = b.limits().capacity,
          .threads = static_cast<int>(b.limits().threads),
          .drops = b.drops(),
          .skipped = b.skipped(),
          .discarded = b.discarded(),
          .room_waits = s.room_waits,
          .producer_wait = s.producer_wait,
          .consumer_wait = s.consumer_wait};
}

const StageOptions& StagingArea::options() const { return state_->options; }
const std::string& StagingArea::label() const { return state_->label; }

}  // namespace engine
