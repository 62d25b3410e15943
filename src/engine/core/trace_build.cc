#include "core/trace_build.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>

#include "engine/op.h"

namespace engine::detail {

const char* UnnamedThread(size_t number) {
  return number == 0 ? "caller" : Name::Intern("caller " + std::to_string(number + 1)).c_str();
}

namespace {

// The records of one kind, by the address that they are about and by time.
class ByAddress {
 public:
  void Add(const void* at, const TraceRecord* record) { records_[at].push_back(record); }
  // The last that is not later than `time`; null: there is none.
  const TraceRecord* Before(const void* at, int64_t time) const {
    const size_t n = CountBefore(at, time + 1);
    return n ? records_.at(at)[n - 1] : nullptr;
  }
  size_t CountBefore(const void* at, int64_t time) const {
    const auto found = records_.find(at);
    if (found == records_.end()) return 0;
    const auto& list = found->second;
    return static_cast<size_t>(std::ranges::lower_bound(list, time, {}, &TraceRecord::begin_ns) - list.begin());
  }

 private:
  std::unordered_map<const void*, std::vector<const TraceRecord*>> records_;
};

// Who touched a Var, or a value, last.
struct Touched {
  int64_t writer = -1;
  std::vector<uint64_t> readers;  // since then
};

class Builder {
 public:
  Builder(TraceRecords& recorded, const std::vector<LoggedWait>& waits, std::chrono::steady_clock::time_point start)
      : recorded_(recorded), waits_(waits), start_(start) {}

  Trace Build() {
    std::stable_sort(recorded_.records.begin(), recorded_.records.end(), [](const auto& a, const auto& b) {
      return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
    });
    NameUnnamed();
    for (const TraceRecord& r : recorded_.records) {
      if (r.kind == TraceKind::kPushed) pushes_.Add(r.op, &r);
      if (r.kind == TraceKind::kDeleted) deletions_.Add(r.op, &r);
    }
    for (const TraceRecord& r : recorded_.records) {
      if (r.kind == TraceKind::kRan || r.kind == TraceKind::kSkipped) AddEvent(r);
      if (r.kind == TraceKind::kSettled) AddEnd(r);
    }
    for (TraceEvent& e : trace_.events) SetReady(e);
    for (const TraceRecord& r : recorded_.records)
      trace_.pending += r.kind == TraceKind::kPushed && !used_.contains(&r);
    trace_.left_out = recorded_.left_out;
    return std::move(trace_);
  }

 private:
  struct Run {
    uint64_t number = 0;
    std::vector<uint64_t> after;  // what the run came behind
  };

  void NameUnnamed() {
    std::map<uint32_t, size_t> unnamed;
    for (const TraceRecord& r : recorded_.records)
      if (!r.thread) unnamed.emplace(r.thread_number, 0);
    for (const LoggedWait& wait : waits_)
      if (!wait.thread) unnamed.emplace(wait.thread_number, 0);
    size_t number = 0;
    for (auto& [thread_number, at] : unnamed) at = number++;
    for (TraceRecord& r : recorded_.records)
      if (!r.thread) r.thread = UnnamedThread(unnamed[r.thread_number]);
    for (const LoggedWait& wait : waits_) {
      const int64_t begin = std::max<int64_t>(0, NanosSince(start_, wait.begin));
      const char* const thread = wait.thread ? wait.thread : UnnamedThread(unnamed[wait.thread_number]);
      trace_.waits.push_back({wait.cause, wait.name, thread, begin, NanosSince(start_, wait.end)});
    }
    std::sort(trace_.waits.begin(), trace_.waits.end(),
              [](const TraceWait& a, const TraceWait& b) { return a.begin_ns < b.begin_ns; });
  }

  void AddEvent(const TraceRecord& r) {
    const TraceRecord* const push = pushes_.Before(r.run ? r.run : r.op, r.begin_ns);
    const uint64_t number = trace_.events.size();
    TraceEvent& e = trace_.events.emplace_back(
        TraceEvent{r.name, r.thread, r.begin_ns, r.end_ns, number, r.kind == TraceKind::kSkipped});
    e.file = r.file;
    e.line = r.line;
    last_at_[r.op] = number;
    ends_.push_back(r.end_ns);
    if (push) {
      used_.emplace(push, 0);
      e.pushed_ns = push->begin_ns;
      e.pusher = push->thread;
    }
    const Run* const run = r.run ? &JoinRun(e, r, push) : nullptr;
    const int64_t known = push ? push->begin_ns : r.run ? r.begin_ns : 0;
    for (uint32_t i = 0; i < r.touches; ++i) Touch(e, recorded_.touches[r.first_touch + i], known);
    const auto inside = [&](uint64_t before) { return trace_.events[before].run == e.run; };
    if (run && std::none_of(e.after.begin(), e.after.end(), inside))
      e.after.insert(e.after.end(), run->after.begin(), run->after.end());
    std::sort(e.after.begin(), e.after.end());
    e.after.erase(std::unique(e.after.begin(), e.after.end()), e.after.end());
  }

  // A run starts when all its Vars are granted, so its first nodes come behind all that the run came behind.
  const Run& JoinRun(TraceEvent& e, const TraceRecord& r, const TraceRecord* push) {
    Run& run = runs_[{r.run, push}];
    if (run.number == 0) {
      run.number = runs_.size();
      for (uint32_t i = 0; push && i < push->touches; ++i) {
        const TraceTouch& touch = recorded_.touches[push->first_touch + i];
        const auto found = touched_.find(KeyOf(touch, push->begin_ns));
        if (found != touched_.end()) Behind(found->second, touch.mode, run.after);
      }
    }
    e.run = run.number;
    e.plan = push ? push->name : "";
    return run;
  }

  static void Behind(const Touched& touched, AccessMode mode, std::vector<uint64_t>& after) {
    if (mode != AccessMode::kRead && !touched.readers.empty()) {
      after.insert(after.end(), touched.readers.begin(), touched.readers.end());
    } else if (touched.writer >= 0) {
      after.push_back(static_cast<uint64_t>(touched.writer));
    }
  }

  // Var blocks are used again: a Var is its address and how many Vars there were before it.
  using Key = std::pair<uint64_t, uint64_t>;
  Key KeyOf(const TraceTouch& touch, int64_t pushed) const {
    if (!touch.name) return {touch.key, UINT64_MAX};
    return {touch.key, deletions_.CountBefore(reinterpret_cast<const void*>(touch.key), pushed)};
  }

  void Touch(TraceEvent& e, const TraceTouch& touch, int64_t pushed) {
    const Key key = KeyOf(touch, pushed);
    Touched& touched = touched_[key];
    if (touch.name) {
      e.uses.push_back({touch.name, vars_.emplace(key, vars_.size()).first->second, touch.mode});
      Behind(touched, touch.mode, e.after);
    } else if (touch.mode == AccessMode::kRead) {
      Behind(touched, touch.mode, e.after);
      return;
    }
    if (touch.mode == AccessMode::kRead) {
      touched.readers.push_back(e.op);
    } else {
      touched.writer = static_cast<int64_t>(e.op);
      touched.readers.clear();
    }
  }

  // Of an asynchronous op. Its body may still run when its Completion is called.
  void AddEnd(const TraceRecord& r) {
    const auto found = last_at_.find(r.op);
    if (found == last_at_.end()) return;
    TraceEvent& e = trace_.events[found->second];
    if (e.settled_ns >= 0) return;
    e.settled_ns = r.begin_ns;
    ends_[e.op] = std::max(ends_[e.op], r.begin_ns);
  }

  void SetReady(TraceEvent& e) {
    e.ready_ns = std::max<int64_t>(e.pushed_ns, 0);
    for (uint64_t before : e.after) e.ready_ns = std::max(e.ready_ns, ends_[before]);
    e.ready_ns = std::min(e.ready_ns, e.begin_ns);  // it began while the op before it was being recorded
  }

  TraceRecords& recorded_;
  const std::vector<LoggedWait>& waits_;
  const std::chrono::steady_clock::time_point start_;
  Trace trace_;
  ByAddress pushes_, deletions_;
  std::vector<int64_t> ends_;  // by event: when what came behind it could start
  std::unordered_map<const void*, uint64_t> last_at_;
  std::unordered_map<const TraceRecord*, int> used_;
  std::map<std::pair<const void*, const TraceRecord*>, Run> runs_;
  std::map<Key, Touched> touched_;
  std::map<Key, uint64_t> vars_;
};

}  // namespace

Trace BuildTrace(TraceRecords recorded, const std::vector<LoggedWait>& waits,
                 std::chrono::steady_clock::time_point start) {
  return Builder(recorded, waits, start).Build();
}

}  // namespace engine::detail
