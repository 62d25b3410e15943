#include "sched/pool.h"

#include <algorithm>

namespace engine::detail {

Pool::Pool(PoolHost& host, uint8_t index, PoolOptions options, int intra_op_threads, std::chrono::nanoseconds spin)
    : host_(host),
      index_(index),
      options_(std::move(options)),
      intra_op_threads_(intra_op_threads < 0 ? options_.threads : intra_op_threads),
      spin_(spin) {
  MutexLock lock(mu_);
  sleeping_.reserve(static_cast<size_t>(std::max(0, options_.threads)));
  lists_.push_back(std::make_unique<QueueList>());
  queues_.store(lists_.back().get(), std::memory_order_release);
}

Pool::~Pool() = default;

void Pool::ListQueue(ThreadSlot& slot) {
  auto queue = std::make_unique<ReadyQueue>();
  queue->owner_pops = slot.worker && slot.worker->pool == this;
  MutexLock lock(mu_);
  auto list = std::make_unique<QueueList>(*lists_.back());
  list->queues.push_back(queue.get());
  lists_.push_back(std::move(list));
  slot.queues[index_] = std::move(queue);
  // release: publishes the list's content. Partner: the acquire loads in Find, TryTake and HasReady.
  queues_.store(lists_.back().get(), std::memory_order_release);
}

void Pool::PutSlow(ThreadSlot& slot, OpRecord* op) noexcept try {
  if (!slot.queues[index_]) ListQueue(slot);
  slot.queues[index_]->level[op->extra.level].Push(op);
} catch (const std::bad_alloc&) {
  MutexLock lock(mu_);
  op->extra.next = nullptr;
  (last_aside_ ? last_aside_->extra.next : first_aside_) = op;
  last_aside_ = op;
  aside_.store(true, std::memory_order_release);  // partner: the acquire loads in Find, TryTake and HasReady
}

OpRecord* Pool::TakeAside() {
  MutexLock lock(mu_);
  OpRecord* const op = first_aside_;
  if (!op) return nullptr;
  first_aside_ = op->extra.next;
  if (first_aside_) return op;
  last_aside_ = nullptr;
  aside_.store(false, std::memory_order_relaxed);
  return op;
}

uint32_t Pool::FairShare(const ReadyDeque& ops) const {
  return std::clamp(static_cast<uint32_t>(ops.Size() / static_cast<int64_t>(workers_.size())), 1u, tuning::kTakeBatch);
}

OpRecord* Pool::TakeShared(Worker& worker, int level) {
  const auto& queues = queues_.load(std::memory_order_acquire)->queues;
  const auto n = static_cast<uint32_t>(queues.size());
  // Takes many at once, because each take moves the line: its share, or as many as it can if the other workers sleep. A
  // pool's only worker takes one at a time, and so runs ops in the order of their Puts, as copy lanes promise: a fair look
  // would overtake what it had put back.
  const size_t awake = workers_.size() - sleepers_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < n; ++i) {
    ReadyQueue& q = *queues[(worker.turn + i) % n];
    if (q.owner_pops) continue;
    OpRecord* taken[tuning::kTakeBatch];
    uint32_t most = 1;
    if (workers_.size() > 1)
      most = awake <= 1 ? tuning::kTakeBatch : FairShare(q.level[level]);  // mechanism: takes_many
    const uint32_t got = q.level[level].TakeMany(taken, most);
    if (!got) continue;
    for (uint32_t k = got; --k > 0;) Put(*worker.slot, taken[k]);  // in reverse, so that our Pop gets the oldest first
    worker.turn += i;
    return taken[0];
  }
  return nullptr;
}

OpRecord* Pool::TakeFromWorkers(Worker& worker, int level) {
  const auto& queues = queues_.load(std::memory_order_acquire)->queues;
  const auto n = static_cast<uint32_t>(queues.size());
  for (uint32_t i = 0; i < n; ++i) {
    ReadyQueue& q = *queues[(worker.turn + i) % n];
    if (!q.owner_pops || &q == worker.slot->queues[index_].get()) continue;
    if (OpRecord* op = q.level[level].Steal()) {
      worker.slot->stolen.Add();
      return op;
    }
  }
  return nullptr;
}

OpRecord* Pool::FindAtLevel(Worker& worker, int level, bool fair) {
  ReadyQueue* const own = worker.slot->queues[index_].get();
  if (fair) {
    // Every other time, because what TakeShared has taken beside another op lies below all that our ops push; nobody steals it if the
    // other workers sleep. A pool's only worker takes none beside another.
    if (own && workers_.size() > 1 && (worker.oldest_first = !worker.oldest_first))
      if (OpRecord* op = own->level[level].Steal()) return op;
    if (OpRecord* op = TakeShared(worker, level)) return op;
  }
  if (own)
    if (OpRecord* op = own->level[level].Pop()) return op;
  if (!fair)
    if (OpRecord* op = TakeShared(worker, level)) return op;
  return workers_.size() > 1 ? TakeFromWorkers(worker, level) : nullptr;
}

OpRecord* Pool::Find(Worker& worker, bool fair) {
  for (uint32_t levels = levels_used_.load(std::memory_order_relaxed); levels; levels &= levels - 1)
    if (OpRecord* op = FindAtLevel(worker, __builtin_ctz(levels), fair)) return op;
  return aside_.load(std::memory_order_acquire) ? TakeAside() : nullptr;
}

OpRecord* Pool::TryTake() {
  const uint32_t used = levels_used_.load(std::memory_order_acquire);
  const auto& queues = queues_.load(std::memory_order_acquire)->queues;
  for (uint32_t levels = used; levels; levels &= levels - 1) {
    for (ReadyQueue* q : queues) {
      OpRecord* op = nullptr;
      if (q->level[__builtin_ctz(levels)].TakeMany(&op, 1)) return op;
    }
  }
  return aside_.load(std::memory_order_acquire) ? TakeAside() : nullptr;
}

bool Pool::FindReady() const {
  if (aside_.load(std::memory_order_acquire)) return true;
  const uint32_t used = levels_used_.load(std::memory_order_acquire);
  const auto& queues = queues_.load(std::memory_order_acquire)->queues;
  for (uint32_t levels = used; levels; levels &= levels - 1)
    for (const ReadyQueue* q : queues)
      if (!q->level[__builtin_ctz(levels)].Empty()) return true;
  return false;
}

bool Pool::Quiet() const {
  if (stopping()) return true;
  return sleepers_.load(std::memory_order_acquire) >= workers_.size() && !HasReady();
}

OpRecord* Pool::Next(Worker& worker, bool fair) {
  if (stopping()) [[unlikely]]
    return nullptr;
  OpRecord* op = Find(worker, fair);
  if (worker.slot->drain_note) [[unlikely]]
    host_.DeliverDrainNote(*worker.slot, op);
  if (op) return op;
  searchers_.fetch_add(1, std::memory_order_seq_cst);
  op = Search(worker);
  while (!op) {
    Sleep(worker);
    if (stopping()) {
      searchers_.fetch_sub(1, std::memory_order_seq_cst);
      return nullptr;
    }
    op = Find(worker, true);
    if (!op) op = Search(worker);
  }
  // A searcher that found an op wakes the next worker if it leaves more behind, because posts relied on it. seq_cst:
  // partner is the fence in Notify; if a post saw us searching, we see its op here.
  if (searchers_.fetch_sub(1, std::memory_order_seq_cst) == 1 && sleepers_.load(std::memory_order_relaxed) != 0 &&
      HasReady())
    Notify();
  return op;
}

OpRecord* Pool::Search(Worker& worker) {
  // A worker that sleeps costs a wake: the thread that wakes it makes a system call, and the op starts only when the worker is
  // back. So each spins first, but not beside another one while ops are tiny, because a second worker then only is in the way.
  bool spins = sleepers_.load(std::memory_order_relaxed) + 1 >= workers_.size();
  spins |= !tiny_.load(std::memory_order_relaxed);              // mechanism: spins_beside
  if (spin_.count() == 0 || !spins) return Find(worker, true);  // mechanism: spins
  SpinPlaces& places = host_.spin_places();
  SpinPlaces::Note(places.searcher);
  const auto begin = Clock::now(), until = begin + spin_;
  for (uint32_t round = 0;; ++round) {
    SpinRound(round, places.waiter, [] { return false; });
    if (OpRecord* op = Find(worker, true)) {
      worker.searched += Clock::now() - begin;
      return op;
    }
    if (stopping() || Clock::now() >= until) return nullptr;
  }
}

// The caller is a searcher, before and after. Returns when there is work, a wake, or a stop.
void Pool::Sleep(Worker& worker) {
  worker.slot->cache.Flush();  // it may have blocks for which others wait
  if (worker.lanes != 0) host_.NoteIssuerIdle(worker);
  {
    MutexLock lock(mu_);
    sleeping_.push_back(&worker);
    worker.sleeper.Lie();
    worker.asleep.store(1, std::memory_order_relaxed);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
  }
  searchers_.fetch_sub(1, std::memory_order_seq_cst);
  HeavyFence();  // partners: LightFence in Notify, and in the announcements of waits for room and for a drain
  host_.NoteIdle();
  worker.sleeps.Add();
  while ((!HasReady() || LeftToOthers()) && !stopping()) {
    if (worker.asleep.load(std::memory_order_acquire) == 0) return worker.sleeper.ComeBack();
    if (!SleepOnce(worker)) break;
  }
  MutexLock lock(mu_);
  const auto at = std::find(sleeping_.begin(), sleeping_.end(), &worker);
  if (at == sleeping_.end())
    return worker.sleeper.ComeBack();  // another thread is waking us, and has counted us as a searcher
  sleeping_.erase(at);
  worker.asleep.store(0, std::memory_order_relaxed);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  searchers_.fetch_add(1, std::memory_order_seq_cst);
}

// Whether the tiny regime lets this sleeping worker leave its ops to others. The last worker to fall asleep sees that
// all sleep, and leaves nothing.
bool Pool::LeftToOthers() const {
  return tiny_.load(std::memory_order_relaxed) && sleepers_.load(std::memory_order_seq_cst) < workers_.size();
}

uint64_t Pool::ProgressMark() const {
  uint64_t mark = 0;
  for (const auto& w : workers_) mark += w->slot->completed[0].Read() + w->slot->completed[1].Read();
  return mark;
}

// Sleeps once; the sentinel sleeps for a limited time. Returns false if the sentinel found work, and found the others
// stuck.
bool Pool::SleepOnce(Worker& worker) {
  Worker* none = nullptr;
  if (!LeftToOthers() || !sentinel_.compare_exchange_strong(none, &worker, std::memory_order_relaxed)) {
    FutexWait(worker.asleep, 1);
    return true;
  }
  const uint64_t mark = ProgressMark();
  FutexWait(worker.asleep, 1, Clock::now() + std::chrono::microseconds(tuning::kSentinelMicros));
  sentinel_.store(nullptr, std::memory_order_relaxed);
  if (ProgressMark() != mark) return true;
  tiny_.store(false, std::memory_order_relaxed);
  return !HasReady();
}

bool Pool::NoteMean(Worker& worker, std::chrono::nanoseconds took, uint32_t ops) {
  const int64_t limit = static_cast<int64_t>(ops) * tuning::kTinyOpNanos;
  const bool was_tiny = tiny_.load(std::memory_order_relaxed);
  // A mean just above the limit comes from a preemption as a rule, often by the sentinel; so the regime ends only after
  // two.
  const bool doubted = std::exchange(worker.doubts, took.count() >= limit);
  const bool tiny = took.count() < (was_tiny && !doubted ? tuning::kDoubtfulMeans * limit : limit);
  if (tiny != was_tiny) tiny_.store(tiny, std::memory_order_relaxed);
  if (!tiny) {
    if (sleepers_.load(std::memory_order_relaxed) != 0 && HasReady()) Notify();  // the wakes that posts left out
    return false;
  }
  return sleepers_.load(std::memory_order_relaxed) + 1 < workers_.size();
}

void Pool::Retire(Worker& worker) {
  searchers_.fetch_add(1, std::memory_order_seq_cst);
  Sleep(worker);
  searchers_.fetch_sub(1, std::memory_order_seq_cst);
}

void Pool::WakeOne(Beside beside) {
  Worker* worker = nullptr;
  const auto now = beside == Beside::kIfOften ? Clock::now() : Clock::time_point();
  {
    MutexLock lock(mu_);
    if (sleeping_.empty()) return;
    worker = sleeping_.back();  // it slept for the shortest time, so its caches are the warmest
    sleeping_.pop_back();
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    searchers_.fetch_add(1, std::memory_order_seq_cst);  // for that worker, so that no second one is woken
    const bool often = beside == Beside::kIfOften && now - std::exchange(woke_, now) < tuning::kWokenLately;
    if ((often || beside == Beside::kYes) && options_.cpus.empty()) worker->sleeper.SendAway();
    // Under the lock: otherwise the worker could wake by itself and sleep again, and this store would end that new
    // sleep.
    worker->asleep.store(0, std::memory_order_release);
  }
  wakeups_.fetch_add(1, std::memory_order_relaxed);
  FutexWake(worker->asleep, 1);  // mutant: dropped_wake
}

void Pool::StopWorkers() {
  stopping_.store(true, std::memory_order_seq_cst);
  HeavyFence();
  {
    MutexLock lock(mu_);
    const auto woken = static_cast<uint32_t>(sleeping_.size());
    sleepers_.fetch_sub(woken, std::memory_order_seq_cst);
    searchers_.fetch_add(woken, std::memory_order_seq_cst);
    for (Worker* w : sleeping_) w->asleep.store(0, std::memory_order_release);
    sleeping_.clear();
  }
  for (const auto& w : workers_) FutexWake(w->asleep, 1);
}

void Pool::ParallelFor(size_t n, size_t grain, const std::function<void(size_t, size_t)>& body, int most) {
  const int threads = most > 0 ? most : intra_op_threads_;
  if (most == 1 || !UseTbb()) {  // no arena, no lock
    if (n > 0) body(0, n);
    return;
  }
  IntraOp* intra_op = nullptr;
  {
    MutexLock lock(mu_);
    std::unique_ptr<IntraOp>& made = intra_op_[threads];
    if (!made) made = std::make_unique<IntraOp>(threads);
    intra_op = made.get();
  }
  intra_op->For(n, grain, body);
}

}  // namespace engine::detail
