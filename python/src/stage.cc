// The binding of Stage. Its source is the two callables that engine/sources.py makes of what the program gave.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "bindings.h"
#include "handle.h"
#include "stage_host.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

using engine::StageItem;
using Taken = engine::StagingArea::Taken;
using SharedFn = std::shared_ptr<const PyRef>;

// None means for ever.
engine::Timeout TimeoutOfSeconds(std::optional<double> seconds) {
  if (!seconds) return engine::Timeout::kForever;
  return std::chrono::nanoseconds(static_cast<int64_t>(std::clamp(*seconds, 0.0, 3e8) * 1e9));
}

SharedFn Shared(nb::handle function) { return std::make_shared<const PyRef>(PyRef::Borrow(function.ptr())); }

// A source made of the callables of engine.sources: pull() and make(what was pulled). Either may be None.
engine::detail::StageSource SourceOf(nb::handle pull, nb::handle make, bool sized) {
  engine::detail::StageSource source;
  if (!pull.is_none()) {
    source.pull = [pull = Shared(pull), sized = sized && make.is_none()](StageItem* item) {
      try {
        *item = ItemOf(CallSource(*pull), sized);
        return true;
      } catch (const PyFailure& failure) {
        // An iterator ends by StopIteration, whatever closed_exception_types is.
        if (PyErr_GivenExceptionMatches(failure.get(), PyExc_StopIteration)) return false;
        throw;
      }
    };
  }
  if (!make.is_none()) {
    source.make = [make = Shared(make), sized](StageItem* item) {
      PyRef raw = PyRef::Steal(static_cast<PyObject*>(item->Release()));
      PyObject* made;
      try {
        made = CallSource(*make, raw ? raw.get() : Py_None);
      } catch (...) {
        raw.Clear();
        throw;
      }
      raw.Clear();
      *item = ItemOf(made, sized);
      return true;
    };
  }
  return source;
}

class PyStage final : public engine::StageBase {
 public:
  PyStage(nb::handle pull, nb::handle make, nb::handle closed, const nb::dict& options)
      : PyStage(pull, make, closed, options, PythonHost::Make(options["engine"])) {}
  ~PyStage() { host_->cancel = {}; }

  nb::object TakeOr(std::optional<double> timeout, nb::handle end) {
    StageItem item;
    switch (TakeItem(&item, TimeoutOfSeconds(timeout))) {
      case Taken::kItem: return nb::steal(static_cast<PyObject*>(item.Release()));
      case Taken::kEnd: return nb::borrow(end);
      case Taken::kTimeout: break;
    }
    PyErr_SetString(PyExc_TimeoutError, (Label() + "no item within the timeout of this take").c_str());
    throw nb::python_error();
  }
  bool RestartWith(nb::handle pull, nb::handle make, engine::Timeout timeout) {
    try {
      CheckRestart();
      Cancel();
      if (!JoinFor(timeout)) return false;
    } catch (const engine::ForkedWhilePending&) {  // the producers stayed in the parent
    }
    Restart(SourceOf(pull, make, sized_));
    return true;
  }
  std::string Label() const { return "stage '" + options().name + "': "; }

 private:
  PyStage(nb::handle pull, nb::handle make, nb::handle closed, const nb::dict& options,
          std::shared_ptr<PythonHost> host)
      : StageBase(Options(closed, options, host),
                  SourceOf(pull, make, nb::cast<size_t>(options["capacity_bytes"]) > 0)),
        host_(std::move(host)),
        sized_(this->options().capacity_bytes > 0) {
    host_->cancel = [this] { Cancel(); };
  }
  static engine::StageOptions Options(nb::handle closed, const nb::dict& given, std::shared_ptr<PythonHost> host) {
    engine::StageOptions options = StageOptionsOf(given, std::move(host));
    options.closed_exception_types = FilterOf(closed);
    return options;
  }

  const std::shared_ptr<PythonHost> host_;
  const bool sized_;  // only capacity_bytes needs to know how large items are
};

// Calls fn, and raises in Python what it throws.
template <class F>
auto Of(const PyStage& self, F&& fn) {
  return Raising([&] { return self.Label(); }, fn);
}

}  // namespace

nb::dict StatsOf(const engine::StageStats& stats) {
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
}

void BindStage(nb::module_& m) {
  nb::class_<PyStage>(m, "Stage", "What engine.data.staged makes: see there.")
      .def(
          "__init__",
          [](PyStage* self, nb::object pull, nb::object make, nb::object closed, const nb::dict& options) {
            Raising([] { return std::string(); }, [&] { new (self) PyStage(pull, make, closed, options); });
          },
          nb::arg("pull").none(), nb::arg("make").none(), nb::arg("closed"), nb::arg("options"),
          nb::sig("def __init__(self, pull: Callable[[], Any] | None, make: Callable[[Any], Any] | None, "
                  "closed: tuple[type[BaseException], ...], options: dict[str, Any]) -> None"))
      .def(
          "start", [](PyStage& self) { Of(self, [&] { self.Start(); }); },
          "Starts the producers, unless they run already, so that items are ready when they are first asked\n"
          "for.")
      .def(
          "close", [](PyStage& self) { Of(self, [&] { self.Close(); }); },
          "Producers begin no more items. Those that were begun are delivered, then the stream ends. May be\n"
          "repeated.")
      .def(
          "cancel", [](PyStage& self) { Of(self, [&] { self.Cancel(); }); },
          "Ends everything now: a thread that waits for an item gets CancelledError, and buffered items are\n"
          "dropped. May be repeated.")
      .def(
          "join",
          [](PyStage& self, std::optional<double> timeout) {
            return Of(self, [&] { return self.JoinFor(TimeoutOfSeconds(timeout)); });
          },
          nb::arg("timeout") = nb::none(), nb::sig("def join(self, timeout: float | None = None) -> bool"),
          "Waits until no producer is inside the source; False if one still is after `timeout` seconds.")
      .def(
          "stats", [](const PyStage& self) { return Of(self, [&] { return StatsOf(self.stats()); }); },
          nb::sig("def stats(self) -> dict[str, Any]"),
          "Counters of this run: delivered, position, fill, drops, skipped, producer_wait, consumer_wait and more.")
      .def_prop_ro(
          "name", [](const PyStage& self) { return self.options().name; },
          "The name that errors and the names of its threads use.")
      .def(
          "_take_or",
          [](PyStage& self, std::optional<double> timeout, nb::object end) {
            return Of(self, [&] { return self.TakeOr(timeout, end); });
          },
          nb::arg("timeout").none(), nb::arg("end").none(),
          nb::sig("def _take_or(self, timeout: float | None, end: Any) -> Any"),
          "The next item, or `end`. Waits; Ctrl-C interrupts it. TimeoutError after `timeout` seconds.")
      .def(
          "_restart",
          [](PyStage& self, nb::object pull, nb::object make, std::optional<double> timeout) {
            return Of(self, [&] { return self.RestartWith(pull, make, TimeoutOfSeconds(timeout)); });
          },
          nb::arg("pull").none(), nb::arg("make").none(), nb::arg("timeout").none(),
          nb::sig("def _restart(self, pull: Callable[[], Any] | None, make: Callable[[Any], Any] | None, "
                  "timeout: float | None) -> bool"),
          "Cancels, and starts over. False: the source has not returned within `timeout` seconds.");
  m.def("stage_lane", &engine::StageLane,
        "In the source of a stage: the placement for its work on the device. Elsewhere: the default CPU pool.");
  m.def(
      "_make_stage_pool",
      [](const std::string& global_name, int inter_op_threads_num, int intra_op_threads_num) {
        const engine::StagePoolOptions options{.global_name = global_name,
                                               .inter_op_threads_num = inter_op_threads_num,
                                               .intra_op_threads_num = intra_op_threads_num};
        return Raising([] { return std::string(); }, [&] { return engine::MakeStagePool(options).number(); });
      },
      nb::arg("global_name"), nb::arg("inter_op_threads_num"), nb::arg("intra_op_threads_num"));
  m.def(
      "_stage_pools",
      [] {
        nb::list all;
        for (const auto& pool : engine::StagePools())
          all.append(nb::make_tuple(pool.global_name.c_str(), pool.inter_op_threads_num, pool.intra_op_threads_num));
        return all;
      },
      nb::sig("def _stage_pools() -> list[tuple[str, int, int]]"));
}

}  // namespace engine_python
