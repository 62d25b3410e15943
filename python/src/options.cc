#include "options.h"

#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "engine/device/device.h"
#include "failure.h"
#include "gil.h"
#include "site.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

using engine::EngineOptions;

template <class Int>
Int IntOf(nb::handle given, const char* key, Int least, Int most = std::numeric_limits<Int>::max()) {
  const std::string what = std::string("init: ") + key;
  if (!PyLong_Check(given.ptr()) || PyBool_Check(given.ptr())) {
    RaiseTypeError(what + " is a " + Py_TYPE(given.ptr())->tp_name + "; an int is expected");
  }
  const long long value = PyLong_AsLongLong(given.ptr());
  const bool overflow = value == -1 && PyErr_Occurred();
  if (overflow) PyErr_Clear();
  const bool too_much = std::cmp_greater(value, most);
  if (overflow || std::cmp_less(value, least) || too_much) {
    RaiseError("UsageError", what + " is " + nb::str(given).c_str() + "; at least " + std::to_string(least) +
                                 " and at most " + std::to_string(most) + " is expected");
  }
  return static_cast<Int>(value);
}

template <class Duration>
Duration SecondsOf(nb::handle given, const char* key) {
  const std::string what = std::string("init: ") + key;
  const double seconds = PyFloat_AsDouble(given.ptr());
  if (seconds == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    RaiseTypeError(what + " is a " + Py_TYPE(given.ptr())->tp_name + "; seconds are expected");
  }
  if (!(seconds >= 0 && seconds < 1e9)) RaiseError("UsageError", what + ": seconds from 0 to 1e9 are expected");
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// A hook in Python. What it raises has nobody to go to but sys.unraisablehook.
template <class... Args>
std::function<void(Args...)> HookOf(nb::handle given, const char* key,
                                    std::type_identity_t<nb::object (*)(Args...)> convert) {
  if (given.is_none()) return {};
  if (!PyCallable_Check(given.ptr())) {
    RaiseTypeError(std::string("init: ") + key + " is a " + Py_TYPE(given.ptr())->tp_name + "; a callable is expected");
  }
  auto hook = std::make_shared<const PyRef>(PyRef::Borrow(given.ptr()));
  return [hook, convert](Args... args) {
    if (Leaving()) return;
    PythonScope python;
    nb::object argument = convert(args...);
    nb::object result = nb::steal(PyObject_CallOneArg(hook->get(), argument.ptr()));
    if (!result.is_valid()) PyErr_WriteUnraisable(hook->get());
  };
}

std::function<void(int)> WorkerHook(nb::handle given, const char* key) {
  return HookOf<int>(given, key, [](int worker) { return nb::object(nb::int_(worker)); });
}

std::vector<int> CpusOf(nb::handle given, const char* key) {
  std::vector<int> cpus;
  for (nb::handle cpu : nb::iter(given)) cpus.push_back(IntOf<int>(cpu, key, 0));
  return cpus;
}

engine::PoolOptions PoolOf(const std::string& name, nb::handle given) {
  engine::PoolOptions pool{.name = name};
  if (!PyDict_Check(given.ptr())) {
    pool.threads = IntOf<int>(given, "pools", 1);
    return pool;
  }
  for (auto [key, value] : nb::borrow<nb::dict>(given)) {
    const std::string field = Text(key, "init: pools: key");
    if (field == "threads")
      pool.threads = IntOf<int>(value, "pools: threads", 1);
    else if (field == "cpus")
      pool.cpus = CpusOf(value, "pools: cpus");
    else if (field == "on_start")
      pool.on_start = WorkerHook(value, "pools: on_start");
    else if (field == "on_end")
      pool.on_end = WorkerHook(value, "pools: on_end");
    else
      RaiseTypeError("init: pools: '" + field + "' is unknown; threads, cpus, on_start, on_end are allowed");
  }
  return pool;
}

using Setter = void (*)(EngineOptions&, nb::handle);
const std::map<std::string, Setter>& Setters() {
  using O = EngineOptions&;
  using H = nb::handle;
  using std::chrono::milliseconds;
  static const auto* setters = new std::map<std::string, Setter>{
      {"workers", [](O o, H v) { o.workers = IntOf<int>(v, "workers", -1); }},
      {"intra_op_threads", [](O o, H v) { o.intra_op_threads = IntOf<int>(v, "intra_op_threads", -1); }},
      {"start_step", [](O o, H v) { o.start_step = IntOf<int>(v, "start_step", 0); }},
      {"stop_step", [](O o, H v) { o.stop_step = IntOf<int>(v, "stop_step", 1); }},
      {"io_threads", [](O o, H v) { o.io_threads = IntOf<int>(v, "io_threads", 1); }},
      {"cpus", [](O o, H v) { o.cpus = CpusOf(v, "cpus"); }},
      {"on_start", [](O o, H v) { o.on_start = WorkerHook(v, "on_start"); }},
      {"on_end", [](O o, H v) { o.on_end = WorkerHook(v, "on_end"); }},
      {"pools",
       [](O o, H v) {
         if (!PyDict_Check(v.ptr())) RaiseTypeError("init: pools is no dict; {name: threads} is expected");
         for (auto [name, pool] : nb::borrow<nb::dict>(v))
           o.pools.push_back(PoolOf(Text(name, "init: pool name"), pool));
       }},
      {"thread_name", [](O o, H v) { o.thread_name = Text(v, "init: thread_name"); }},
      {"max_pending", [](O o, H v) { o.max_pending = IntOf<size_t>(v, "max_pending", 1); }},
      {"hard_max_pending", [](O o, H v) { o.hard_max_pending = IntOf<size_t>(v, "hard_max_pending", 1); }},
      {"max_spare_threads", [](O o, H v) { o.max_spare_threads = IntOf<int>(v, "max_spare_threads", 0); }},
      {"spin", [](O o, H v) { o.spin = SecondsOf<std::chrono::microseconds>(v, "spin"); }},
      {"drain_timeout", [](O o, H v) { o.drain_timeout = SecondsOf<milliseconds>(v, "drain_timeout"); }},
      {"stall_timeout", [](O o, H v) { o.stall_timeout = SecondsOf<milliseconds>(v, "stall_timeout"); }},
      {"on_stall",
       [](O o, H v) {
         o.on_stall = HookOf<std::string_view>(
             v, "on_stall", [](std::string_view report) { return nb::object(nb::str(report.data(), report.size())); });
       }},
      {"on_unobserved",
       [](O o, H v) {
         o.on_unobserved = HookOf<const engine::OpError&>(v, "on_unobserved", [](const engine::OpError& error) {
           return nb::steal(ToPython(std::make_exception_ptr(error)));
         });
       }},
      {"devices",
       [](O o, H v) {
         for (nb::handle name : nb::iter(v))
           o.devices.push_back(engine::MakeDevice(Text(name, "init: devices: a device's name")));
       }},
      {"streams_per_device", [](O o, H v) { o.streams_per_device = IntOf<int>(v, "streams_per_device", 1); }},
      {"policy", [](O o, H v) { o.policy = engine::PolicyByName(Text(v, "init: policy")); }},
      {"smart_stage", [](O o, H v) { o.policy_options.smart_stage = PyObject_IsTrue(v.ptr()) == 1; }},
      {"raise_at_push", [](O o, H v) { o.policy_options.raise_at_push = PyObject_IsTrue(v.ptr()) == 1; }},
  };
  return *setters;
}

}  // namespace

EngineOptions OptionsFrom(nb::handle given, EngineOptions base) {
  for (auto [key, value] : nb::borrow<nb::dict>(given)) {
    const std::string name = Text(key, "init: keyword");
    const auto setter = Setters().find(name);
    if (setter == Setters().end()) {
      std::string allowed;
      for (const auto& entry : Setters()) allowed += (allowed.empty() ? "" : ", ") + entry.first;
      RaiseTypeError("init: '" + name + "' is unknown; allowed are " + allowed);
    }
    try {
      setter->second(base, value);
    } catch (const engine::Error&) {
      Raise(std::current_exception());
    }
  }
  return base;
}

}  // namespace engine_python
