#include "stage.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "body.h"
#include "engine/spi/staging_area.h"
#include "failure.h"
#include "gil.h"
#include "handle.h"
#include "wait.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

using engine::StageItem;
using engine::StagingArea;
using std::chrono::steady_clock;

constexpr auto kExitPatience = std::chrono::seconds(2);  // how long exit waits for sources to return
constexpr auto kLongTake =
    std::chrono::microseconds(200);  // waits shorter than this are not worth a hand-over of the GIL
constexpr auto kHandOver = std::chrono::microseconds(200);
constexpr int kHandOvers = 16;
constexpr int64_t kOver = -1, kSpawn = -2;

struct Area {
  Area(engine::StageOptions options, PyRef of) : engine(std::move(of)), area(std::move(options)) {}
  const PyRef engine;  // whose device lane the options name
  StagingArea area;
  // Guarded by the GIL.
  int producers = 0;  // inside their loops
  int takers = 0;     // that sleep in Take
  steady_clock::time_point taking_since{};
  bool fresh = true;                       // nothing was put yet
  steady_clock::time_point woken_since{};  // taking_since of the consumer for whom the last item was put
  int hand_overs = 0;                      // of the GIL, before it is asked anew whether the source keeps it
  // Takes that have ended. release, with the acquire in LetTakerRun: nothing but the order of the two.
  std::atomic<uint32_t> taken{0};
};
using AreaPtr = std::shared_ptr<Area>;

// What Python has of it: the Stage owns it, and its end cancels; its producers use it.
struct PyArea {
  explicit PyArea(AreaPtr area, bool owner = false) : state(std::move(area)), owns(owner) {}
  PyArea(PyArea&& other) noexcept : state(std::move(other.state)), owns(std::exchange(other.owns, false)) {}
  ~PyArea() {
    if (!owns) return;
    try {
      state->area.Cancel();
    } catch (const engine::Error&) {  // in the child of a fork: the producers are the parent's
    }
  }
  AreaPtr state;
  bool owns;
};

// Guarded by the GIL.
std::vector<std::weak_ptr<Area>>& Registry() {
  static auto* areas = new std::vector<std::weak_ptr<Area>>;
  return *areas;
}

// Runs fn and raises in Python what it throws; what a source raised comes as a copy of its own with a note.
template <class F>
auto Raising(const Area& area, F&& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (const nb::python_error&) {
    throw;
  } catch (const PyFailure& failure) {
    RaiseWithNote(failure, "engine: " + area.area.label() + "its source raised this");
  } catch (...) {
    Raise(std::current_exception());
  }
}

StageItem ItemOf(nb::handle object, size_t bytes) {
  return StageItem(
      object.inc_ref().ptr(), [](void* data) noexcept { PyRef::Steal(static_cast<PyObject*>(data)); }, bytes);
}

// The pool that DeepRec's two options name.
engine::StagePool PoolOf(const std::string& stage, bool use, int number) {
  try {
    if (use) return engine::StagePool::Number(number);
    if (number == 0) return {};
    throw engine::UsageError("stage '" + stage + "': stage_subgraph_thread_pool_id is " + std::to_string(number) +
                             "; it needs use_stage_subgraph_thread_pool");
  } catch (...) {
    Raise(std::current_exception());
  }
}

engine::StageOptions OptionsOf(const std::string& name, size_t capacity, size_t capacity_bytes, int num_threads,
                               int num_clients, bool ordered, int64_t timeout_millis, bool drop,
                               int64_t take_timeout_millis, int ignored_budget, bool use_pool, int pool, int stream,
                               bool autotune, size_t max_capacity, int max_threads, engine::Engine* of) {
  return {.name = name,
          .capacity = capacity,
          .capacity_bytes = capacity_bytes,
          .num_threads = num_threads,
          .num_clients = num_clients,
          .ordered = ordered,
          .timeout_millis = std::chrono::milliseconds(timeout_millis),
          .on_timeout = drop ? engine::OnTimeout::kDrop : engine::OnTimeout::kError,
          .take_timeout_millis = std::chrono::milliseconds(take_timeout_millis),
          .ignored_budget = ignored_budget,
          .pool = PoolOf(name, use_pool, pool),
          .stage_subgraph_stream_id = stream,
          .engine = of,
          .autotune = autotune,
          .max_capacity = max_capacity,
          .max_threads = max_threads};
}

PyArea MakeArea(engine::StageOptions options, PyRef of) {
  AreaPtr state;
  try {
    state = std::make_shared<Area>(std::move(options), std::move(of));
  } catch (...) {
    Raise(std::current_exception());
  }
  auto& registry = Registry();
  std::erase_if(registry, [](const auto& weak) { return weak.expired(); });
  registry.push_back(state);
  return PyArea(std::move(state), true);
}

int64_t Begin(const PyArea& self) {
  const AreaPtr state = self.state;
  return Raising(*state, [&]() -> int64_t {
    if (Leaving()) return kOver;
    uint64_t ticket;
    StagingArea::Turn turn = state->area.Begin(&ticket, StagingArea::kNow);
    if (turn == StagingArea::Turn::kBusy) WithoutGil([&] { turn = state->area.Begin(&ticket); });
    if (turn == StagingArea::Turn::kItem) return static_cast<int64_t>(ticket);
    return turn == StagingArea::Turn::kSpawn ? kSpawn : kOver;
  });
}

// A producer begins.
void Enter(const PyArea& self) {
  const AreaPtr state = self.state;
  ++state->producers;
  state->area.Enter();
}

// Lets go of the GIL until a consumer has an item and asks for it, or for kHandOver at most.
void LetTakerRun(Area& area, uint32_t before) {
  if (Leaving()) return;
  const auto until = steady_clock::now() + kHandOver;
  WithoutGil([&] {
    while (area.taken.load(std::memory_order_acquire) == before && steady_clock::now() < until) {
      std::this_thread::yield();
    }
  });
}

// A consumer that was just woken wants the GIL. A source that waits or calls into libraries lets go of it soon; one of pure
// Python would keep it for a whole switch interval (5 ms). Which it is shows at the next item: who was woken by the one
// before still waits, or not. It is asked again from time to time, because who gives the GIL up may be long without it.
// With the first item the consumer may still be on its way out of the call that started this thread.
void MindTakers(Area& area, uint32_t before) {
  const bool first = std::exchange(area.fresh, false);
  if (area.takers == 0) {
    if (first) LetTakerRun(area, before);
    return;
  }
  if (std::exchange(area.woken_since, area.taking_since) == area.taking_since) area.hand_overs = kHandOvers;
  if (area.hand_overs == 0 || steady_clock::now() - area.taking_since < kLongTake) return;
  --area.hand_overs;
  LetTakerRun(area, before);
}

// False: it waits for room, and so must the producer, which lets go of the item before: AwaitRoom. Whoever takes the item
// may free it then, however long the producer sleeps.
bool Put(const PyArea& self, uint64_t ticket, nb::handle item, size_t bytes) {
  const AreaPtr state = self.state;
  return Raising(*state, [&] {
    const uint32_t before = state->taken.load(std::memory_order_relaxed);  // relaxed: a stale count costs one kHandOver
    const bool go_on = state->area.Put(ticket, ItemOf(item, bytes));
    if (go_on) MindTakers(*state, before);
    return go_on;
  });
}

void AwaitRoom(const PyArea& self, uint64_t ticket) {
  const AreaPtr state = self.state;
  Raising(*state, [&] { WithoutGil([&] { state->area.AwaitRoom(ticket); }); });
}

struct Leaver {
  int& count;
  ~Leaver() { --count; }
};
struct Counted {
  std::atomic<uint32_t>& count;
  ~Counted() { count.fetch_add(1, std::memory_order_release); }
};

// The item, or null at the end. TimeoutError after `timeout` seconds.
nb::object Take(const PyArea& self, std::optional<double> timeout) {
  const AreaPtr state = self.state;
  return Raising(*state, [&]() -> nb::object {
    StageItem item;
    StagingArea::Taken taken = state->area.Take(&item, StagingArea::kNow);
    if (taken != StagingArea::Taken::kTimeout) {
      const Counted counted{state->taken};
    } else {
      const auto began = steady_clock::now();
      const auto until = timeout ? began + std::chrono::duration_cast<steady_clock::duration>(
                                               std::chrono::duration<double>(std::min(*timeout, 3e8)))
                                 : StagingArea::kNever;
      state->taking_since = began;
      ++state->takers;
      const Leaver leaver{state->takers};
      const bool watch_signals = OnMainThread() && !CurrentBody();
      do {
        const auto most = watch_signals ? std::min(until, steady_clock::now() + kSlice) : until;
        WithoutGil([&] {
          const Counted counted{state->taken};
          taken = state->area.Take(&item, most, began);
        });
        if (taken == StagingArea::Taken::kTimeout && PyErr_CheckSignals() != 0) throw nb::python_error();
      } while (taken == StagingArea::Taken::kTimeout && steady_clock::now() < until);
    }
    if (taken == StagingArea::Taken::kItem) return nb::steal(static_cast<PyObject*>(item.Release()));
    if (taken == StagingArea::Taken::kEnd) return {};
    PyErr_SetString(PyExc_TimeoutError, (state->area.label() + "no item within the timeout of this take").c_str());
    throw nb::python_error();
  });
}

nb::dict Stats(const PyArea& self) {
  return Raising(*self.state, [&] {
    const engine::StageStats stats = self.state->area.stats();
    nb::dict out;
#define STAGE_STAT(field) out[#field] = stats.field
    STAGE_STAT(delivered);
    STAGE_STAT(position);
    STAGE_STAT(begun);
    STAGE_STAT(fill);
    STAGE_STAT(fill_bytes);
    STAGE_STAT(waiting);
    STAGE_STAT(capacity);
    STAGE_STAT(threads);
    STAGE_STAT(drops);
    STAGE_STAT(skipped);
    STAGE_STAT(discarded);
    STAGE_STAT(room_waits);
#undef STAGE_STAT
    out["producer_wait"] = std::chrono::duration<double>(stats.producer_wait).count();
    out["consumer_wait"] = std::chrono::duration<double>(stats.consumer_wait).count();
    return out;
  });
}

int MakePool(const std::string& global_name, int inter_op_threads_num, int intra_op_threads_num) {
  try {
    const engine::StagePoolOptions options{.global_name = global_name,
                                           .inter_op_threads_num = inter_op_threads_num,
                                           .intra_op_threads_num = intra_op_threads_num};
    return engine::MakeStagePool(options).number();
  } catch (...) {
    Raise(std::current_exception());
  }
}

}  // namespace

void CancelStages() {
  std::vector<AreaPtr> alive;
  for (const auto& weak : Registry()) {
    AreaPtr state = weak.lock();
    if (!state) continue;
    try {
      state->area.Cancel();
    } catch (const engine::ForkedWhilePending&) {
      continue;  // its producers are the parent's
    }
    alive.push_back(std::move(state));
  }
  const auto busy = [&] {
    return std::any_of(alive.begin(), alive.end(), [](const auto& a) { return a->producers > 0; });
  };
  const auto limit = steady_clock::now() + kExitPatience;
  while (busy() && steady_clock::now() < limit) {
    PyThreadState* thread = PyEval_SaveThread();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    PyEval_RestoreThread(thread);
  }
}

void BindStage(nb::module_& m) {
  using Error = nb::handle;
  const auto failure = [](Error error) { return std::make_exception_ptr(PyFailure(error.ptr())); };
  nb::class_<PyArea>(m, "StagingArea", "Where the producers and consumers of a stage meet. See engine.staged.")
      .def(
          "__init__",
          [](PyArea* self, const std::string& name, size_t capacity, size_t capacity_bytes, int num_threads,
             int num_clients, bool ordered, int64_t timeout_millis, bool drop, int64_t take_timeout_millis,
             int ignored_budget, bool use_pool, int pool, int stream, bool autotune, size_t max_capacity,
             int max_threads, const PyEngine* of) {
            new (self) PyArea(
                MakeArea(OptionsOf(name, capacity, capacity_bytes, num_threads, num_clients, ordered, timeout_millis,
                                   drop, take_timeout_millis, ignored_budget, use_pool, pool, stream, autotune,
                                   max_capacity, max_threads, of ? &of->state->engine : nullptr),
                         of ? PyRef::Borrow(nb::find(*of).ptr()) : PyRef()));
          },
          nb::arg("name"), nb::arg("capacity"), nb::arg("capacity_bytes"), nb::arg("num_threads"),
          nb::arg("num_clients"), nb::arg("ordered"), nb::arg("timeout_millis"), nb::arg("drop"),
          nb::arg("take_timeout_millis"), nb::arg("ignored_budget"), nb::arg("use_pool"), nb::arg("pool"),
          nb::arg("stream"), nb::arg("autotune"), nb::arg("max_capacity"), nb::arg("max_threads"),
          nb::arg("engine").none())
      .def("begin", &Begin, "A ticket, or -1: end this producer, or -2: start one more, then call again.")
      .def("put", &Put, nb::arg("ticket"), nb::arg("item").none(), nb::arg("bytes") = 0,
           "Hands an item over. False: it waits for room; let go of it and call await_room.")
      .def("await_room", &AwaitRoom, nb::arg("ticket"), "Returns when the item that put left waiting has found room.")
      .def(
          "skip",
          [failure](const PyArea& self, uint64_t ticket, Error error) {
            Raising(*self.state, [&] { self.state->area.Skip(ticket, failure(error)); });
          },
          nb::arg("ticket"), nb::arg("error"), nb::sig("def skip(self, ticket: int, error: BaseException) -> None"),
          "Nothing came of this ticket, because of an ignored exception.")
      .def(
          "end",
          [](const PyArea& self, uint64_t ticket, bool exact) {
            Raising(*self.state, [&] { self.state->area.End(ticket, exact); });
          },
          nb::arg("ticket"), nb::arg("exact"), "There is no more data; `exact`: what was begun later is thrown away.")
      .def(
          "fail",
          [failure](const PyArea& self, uint64_t ticket, Error error) {
            Raising(*self.state, [&] { self.state->area.Fail(ticket, failure(error)); });
          },
          nb::arg("ticket"), nb::arg("error"), nb::sig("def fail(self, ticket: int, error: BaseException) -> None"),
          "The source raised: takers get it after the items before it.")
      .def(
          "take",
          [](const PyArea& self, std::optional<double> timeout, nb::object end) {
            nb::object item = Take(self, timeout);
            return item.is_valid() ? item : end;
          },
          nb::arg("timeout").none(), nb::arg("end").none(),
          nb::sig("def take(self, timeout: float | None, end: Any) -> Any"),
          "The next item, or `end`. Waits; Ctrl-C works. TimeoutError after `timeout` seconds.")
      .def("close", [](const PyArea& self) { Raising(*self.state, [&] { self.state->area.Close(); }); })
      .def("cancel", [](const PyArea& self) { Raising(*self.state, [&] { self.state->area.Cancel(); }); })
      .def("stats", &Stats, nb::sig("def stats(self) -> dict[str, Any]"))
      .def(
          "for_producers", [](const PyArea& self) { return PyArea(self.state); },
          "The same for those who put items: that this one goes ends nothing.")
      .def("enter", &Enter)
      .def("leave", [](const PyArea& self) { --self.state->producers; })
      .def_prop_ro("producers", [](const PyArea& self) { return self.state->producers; })
      .def_prop_ro("name", [](const PyArea& self) { return self.state->area.options().name; });
  m.def("stage_lane", &engine::StageLane,
        "In the source of a stage: where its device work goes, for `place`. Elsewhere the CPU.");
  m.def("_make_stage_pool", &MakePool, nb::arg("global_name"), nb::arg("inter_op_threads_num"),
        nb::arg("intra_op_threads_num"));
  m.def(
      "_stage_pools",
      [] {
        nb::list all;
        for (const auto& pool : engine::StagePools()) {
          all.append(nb::make_tuple(pool.global_name.c_str(), pool.inter_op_threads_num, pool.intra_op_threads_num));
        }
        return all;
      },
      nb::sig("def _stage_pools() -> list[tuple[str, int, int]]"));
}

}  // namespace engine_python
