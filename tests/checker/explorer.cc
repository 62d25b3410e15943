#include "explorer.h"

#include <bit>
#include <chrono>
#include <cstring>
#include <sstream>

namespace checker {

namespace {
constexpr size_t kMostEvents = size_t{1} << 14;  // on one path; recorded on small stacks, so there is no growing
}

Explorer* Explorer::current_ = nullptr;

Explorer::Explorer(Program& program) : program_(program) {
  current_ = this;
  events_.reserve(kMostEvents);
}

Explorer::~Explorer() { current_ = nullptr; }

int Explorer::AddThread(std::string name, std::function<void()> body) {
  Thread& thread = threads_.emplace_back();
  thread.name = std::move(name);
  thread.body = std::move(body);
  state_.emplace_back();
  return static_cast<int>(threads_.size()) - 1;
}

void Explorer::ThreadMain(void* argument) {
  auto* const thread = static_cast<Thread*>(argument);
  thread->body();
  current_->state_[current_->running_].status = Status::kOver;
  for (;;) Fiber::Yield();
}

void Explorer::Start(int t) {
  if (state_[t].status != Status::kUnstarted) Fail("a thread was started twice");
  threads_[t].fiber.Prepare(&ThreadMain, &threads_[t]);
  state_[t].status = Status::kRunnable;
  state_[t].rides = true;
}

void Explorer::Yield(const Block& block, bool rides) {
  state_[running_].block = block;
  state_[running_].rides = rides;
  Fiber::Yield();
}

void Explorer::Fail(const char* rule) {
  if (!violation_) violation_ = rule;
  for (;;) Fiber::Yield();  // never resumed: the exploration ends here
}

void Explorer::Record(Event event) {
  if (events_.size() == kMostEvents) Fail("the path is too long for the checker");
  event.thread = static_cast<uint8_t>(running_);
  event.tag = program_.Tag();
  events_.push_back(event);
}

bool Explorer::Enabled(const ThreadState& state) const {
  if (state.status != Status::kRunnable) return false;
  if (!state.block.word) return true;
  uint64_t now = 0;
  std::memcpy(&now, state.block.word, state.block.bytes);
  return now != state.block.value;
}

uint32_t Explorer::EnabledThreads() const {
  uint32_t enabled = 0;
  for (size_t t = 0; t < state_.size(); ++t) enabled |= uint32_t{Enabled(state_[t])} << t;
  return enabled;
}

void Explorer::Step(int t) {
  ++outcome_.steps;
  running_ = t;
  riding_ = state_[t].rides;
  state_[t].block = {};
  threads_[t].fiber.Resume();
  if (state_[t].status == Status::kOver) threads_[t].fiber.Clear();
  Digest digest;
  const auto live = threads_[t].fiber.live();
  digest.Add(live.data(), live.size());
  state_[t].digest = digest;
}

Digest Explorer::StateDigest() {
  Digest digest;
  const auto memory = program_.memory();
  digest.Add(memory.data(), memory.size());
  for (const ThreadState& state : state_) {
    digest.AddPair(state.digest.low, state.digest.high);
    digest.AddPair(static_cast<uint64_t>(state.status), 0);
  }
  return digest;
}

void Explorer::Save() {
  const auto append = [this](const void* from, size_t bytes) {
    const auto* p = static_cast<const std::byte*>(from);
    saved_.insert(saved_.end(), p, p + bytes);
  };
  const auto memory = program_.memory();
  append(memory.data(), memory.size());
  append(state_.data(), state_.size() * sizeof(ThreadState));
  for (size_t t = 0; t < threads_.size(); ++t) {
    const auto live = threads_[t].fiber.live();
    const size_t bytes = live.size();
    append(&bytes, sizeof(bytes));
    append(live.data(), bytes);
  }
}

void Explorer::Restore(size_t from) {
  const std::byte* p = saved_.data() + from;
  const auto take = [&p](void* to, size_t bytes) {
    std::memcpy(to, p, bytes);
    p += bytes;
  };
  const auto memory = program_.memory();
  take(memory.data(), memory.size());
  take(state_.data(), state_.size() * sizeof(ThreadState));
  for (Thread& thread : threads_) {
    size_t bytes;
    take(&bytes, sizeof(bytes));
    thread.fiber.Restore({p, bytes});
    p += bytes;
  }
}

void Explorer::Push(int last) {
  const uint32_t enabled = EnabledThreads();
  if (!enabled) {
    ++outcome_.ends;
    violation_ = program_.AtRest();
    return;
  }
  path_.push_back({.saved = saved_.size(), .trace = events_.size(), .untried = enabled, .last = last});
  outcome_.deepest = std::max(outcome_.deepest, path_.size());
  if (enabled & (enabled - 1)) Save();  // with one thread only, nobody comes back
}

int Explorer::Choose(Frame& frame) const {
  const uint32_t last = frame.last < 0 ? 0 : uint32_t{1} << frame.last;
  const int t = frame.untried & last ? frame.last : std::countr_zero(frame.untried);
  frame.untried &= ~(uint32_t{1} << t);
  return t;
}

void Explorer::Explore() {
  seen_.Insert(StateDigest());
  Push(-1);
  bool at_top = true;  // the memory holds the state of the path's last frame
  while (!path_.empty() && !violation_) {
    Frame& frame = path_.back();
    if (!frame.untried) {
      saved_.resize(frame.saved);
      path_.pop_back();
      at_top = false;
      continue;
    }
    if (!at_top) {
      Restore(frame.saved);
      events_.resize(frame.trace);
    }
    const int t = Choose(frame);
    Step(t);
    at_top = false;
    if (violation_ || !seen_.Insert(StateDigest())) continue;
    const size_t depth = path_.size();
    Push(t);
    at_top = path_.size() > depth;
  }
}

Outcome Explorer::Run() {
  const auto start = std::chrono::steady_clock::now();
  program_.Begin();
  Explore();
  outcome_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  outcome_.states = seen_.size();
  if (violation_) {
    outcome_.violation = violation_;
    std::ostringstream trace;
    Print(trace);
    outcome_.trace = trace.str();
  }
  return outcome_;
}

void Explorer::Print(std::ostream& out) const {
  for (const Event& e : events_) {
    out << "  " << threads_[e.thread].name << "  ";
    if (e.remark) {
      out << "-- " << program_.NameOf(e) << '\n';
      continue;
    }
    out << program_.NameOf(e);
    const std::string before = program_.ValueOf(e, e.before);
    switch (e.kind) {
      case AccessKind::kLoad: out << " is " << before << '\n'; break;
      case AccessKind::kFailedCompareExchange: out << " is " << before << ", not what was expected\n"; break;
      default: out << ": " << before << " -> " << program_.ValueOf(e, e.after) << '\n';
    }
  }
}

// --- Program's defaults

void Program::BeforeAccess(const void*, AccessKind, uint64_t) { Explorer::current().Point(); }

std::string Program::ValueOf(const Event&, uint64_t value) const { return std::to_string(static_cast<int64_t>(value)); }

}  // namespace checker
