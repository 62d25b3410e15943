#include "options.h"
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "engine/device/device.h"
#include "failure.h"
#include "gil.h"
#include "site.h"

namespace nb = nanobind;

namespace engine_python {

using engine::EngineOptions;
namespace option = engine::option;

namespace {

template <class Int>
Int IntOf(nb::handle given, const std::string& what, Int least, Int most = std::numeric_limits<Int>::max()) {
  if (!PyLong_Check(given.ptr()) || PyBool_Check(given.ptr())) {
    RaiseTypeError(what + " is " + ATypeOf(given.ptr()) + "; an int is expected");
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
Duration SecondsOf(nb::handle given, const std::string& what) {
  const double seconds = PyFloat_AsDouble(given.ptr());
  if (seconds == -1.0 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
    PyErr_Clear();
    RaiseTypeError(what + " is " + ATypeOf(given.ptr()) + "; seconds are expected");
  }
  if (!(seconds >= 0 && seconds < 1e9))
    RaiseError("UsageError", what + " is " + nb::str(given).c_str() + "; seconds from 0 to 1e9 are expected");
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// A Python function as a hook. What it raises goes to sys.unraisablehook, because nobody else can get it.
template <class... Args>
std::function<void(Args...)> HookOf(nb::handle given, const std::string& what,
                                    std::type_identity_t<nb::object (*)(Args...)> convert) {
  if (given.is_none()) return {};
  if (!PyCallable_Check(given.ptr())) {
    RaiseTypeError(what + " is " + ATypeOf(given.ptr()) + "; a callable is expected");
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

std::function<void(int)> WorkerHook(nb::handle given, const std::string& what) {
  return HookOf<int>(given, what, [](int worker) { return nb::object(nb::int_(worker)); });
}

std::vector<int> CpusOf(nb::handle given, const std::string& what) {
  std::vector<int> cpus;
  const long known = sysconf(_SC_NPROCESSORS_CONF);
  for (nb::handle cpu : nb::iter(given)) {
    cpus.push_back(IntOf<int>(cpu, what, 0));
    if (cpus.back() >= known)
      RaiseError("UsageError", what + " has processor " + std::to_string(cpus.back()) + "; the machine has 0 to " +
                                   std::to_string(known - 1));
  }
  return cpus;
}

constexpr int kAnyInt = std::numeric_limits<int>::min();

engine::PoolOptions PoolOf(const std::string& name, nb::handle given, const std::string& what) {
  engine::PoolOptions pool{.name = name};
  if (!PyDict_Check(given.ptr())) {
    pool.threads = IntOf<int>(given, what + "['" + name + "']", kAnyInt);
    return pool;
  }
  for (auto [key, value] : nb::borrow<nb::dict>(given)) {
    const std::string field = Text(key, what + ": key");
    if (field == "threads")
      pool.threads = IntOf<int>(value, what + "['" + name + "']: threads", kAnyInt);
    else if (field == "cpus")
      pool.cpus = CpusOf(value, what + ": cpus");
    else if (field == "on_start")
      pool.on_start = WorkerHook(value, what + ": on_start");
    else if (field == "on_end")
      pool.on_end = WorkerHook(value, what + ": on_end");
    else
      RaiseTypeError(what + ": '" + field + "' is unknown; threads, cpus, on_start, on_end are allowed");
  }
  return pool;
}

// ---- from Python: an overload for each kind of option

void Set(EngineOptions&, int& option, nb::handle given, const std::string& what, option::Range allowed) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  option = IntOf<int>(given, what, static_cast<int>(allowed.least), static_cast<int>(std::min(allowed.most, kMost)));
}
void Set(EngineOptions&, size_t& option, nb::handle given, const std::string& what, option::Range allowed) {
  option = IntOf<size_t>(given, what, static_cast<size_t>(allowed.least), static_cast<size_t>(allowed.most));
}
template <class Rep, class Period>
void Set(EngineOptions&, std::chrono::duration<Rep, Period>& option, nb::handle given, const std::string& what,
         option::Range) {
  option = SecondsOf<std::chrono::duration<Rep, Period>>(given, what);
}
void Set(EngineOptions&, std::string& option, nb::handle given, const std::string& what, option::Range) {
  option = Text(given, what);
}
void Set(EngineOptions&, option::Cpus& option, nb::handle given, const std::string& what, option::Range) {
  option = CpusOf(given, what);
}
void Set(EngineOptions&, option::WorkerHook& option, nb::handle given, const std::string& what, option::Range) {
  option = WorkerHook(given, what);
}
void Set(EngineOptions&, option::ReportHook& option, nb::handle given, const std::string& what, option::Range) {
  option = HookOf<std::string_view>(
      given, what, [](std::string_view report) { return nb::object(nb::str(report.data(), report.size())); });
}
void Set(EngineOptions&, option::ErrorHook& option, nb::handle given, const std::string& what, option::Range) {
  option = HookOf<const engine::OpError&>(
      given, what, [](const engine::OpError& error) { return nb::steal(ToPython(std::make_exception_ptr(error))); });
}
void Set(EngineOptions&, option::Pools& option, nb::handle given, const std::string& what, option::Range) {
  if (!PyDict_Check(given.ptr())) RaiseTypeError(what + " is no dict; {name: threads} is expected");
  option.clear();
  for (auto [name, pool] : nb::borrow<nb::dict>(given))
    option.push_back(PoolOf(Text(name, what + ": name"), pool, what));
}
void Set(EngineOptions&, option::Devices& option, nb::handle given, const std::string& what, option::Range) {
  option.clear();
  if (PyUnicode_Check(given.ptr()))
    RaiseTypeError(what + " is a str; a list of names is expected: [\"" + Text(given, what) + "\"]");
  for (nb::handle name : nb::iter(given)) option.push_back(engine::MakeDevice(Text(name, what + ": a device's name")));
}
void Set(EngineOptions&, engine::Policy& option, nb::handle given, const std::string& what, option::Range) {
  option = engine::PolicyByName(Text(given, what));
}
// The policy comes before its parameters in the table, so it is known here.
void Set(EngineOptions& options, engine::PolicyOptions& option, nb::handle given, const std::string& what,
         option::Range) {
  if (!PyDict_Check(given.ptr())) RaiseTypeError(what + " is no dict; {parameter: value} is expected");
  option = engine::MakePolicy(engine::PolicyName(options.policy), ParameterTexts(given)).options;
}

}  // namespace

std::map<std::string, std::string> ParameterTexts(nb::handle parameters) {
  std::map<std::string, std::string> texts;
  for (auto [key, value] : nb::borrow<nb::dict>(parameters)) {
    std::string& text = texts[Text(key, "the name of a policy's parameter")];
    text = PyBool_Check(value.ptr()) ? (value.ptr() == Py_True ? "true" : "false") : nb::str(value).c_str();
  }
  return texts;
}

PyOptions OptionsFrom(nb::handle given, EngineOptions base, const std::string& call) {
  PyOptions made{std::move(base)};
  const nb::dict keywords = nb::borrow<nb::dict>(given);
  size_t known = 0;
  std::string names;
  try {
#define ENGINE_SET_OPTION_OF(of, name, allowed)                                                 \
  names += ", " #name;                                                                          \
  if (keywords.contains(#name)) {                                                               \
    ++known;                                                                                    \
    nb::object value = keywords[#name];                                                         \
    if (!value.is_none()) Set(made.engine, of.name, value, call + ": " #name, option::allowed); \
  }
#define ENGINE_SET_OPTION(kind, name, initial, allowed, ...) ENGINE_SET_OPTION_OF(made.engine, name, allowed)
#define ENGINE_SET_PY_OPTION(kind, name, initial, allowed, ...) ENGINE_SET_OPTION_OF(made, name, allowed)
    ENGINE_OPTIONS(ENGINE_SET_OPTION)
    ENGINE_PY_OPTIONS(ENGINE_SET_PY_OPTION)
#undef ENGINE_SET_OPTION_OF
#undef ENGINE_SET_OPTION
#undef ENGINE_SET_PY_OPTION
  } catch (const engine::Error&) {
    Raise(std::current_exception());
  }
  if (known == keywords.size()) return made;
  for (auto [key, value] : keywords) {
    const std::string name = Text(key, call + ": keyword");
    if ((names + ",").find(", " + name + ",") == std::string::npos)
      RaiseTypeError(call + ": '" + name + "' is unknown; allowed are " + names.substr(2));
  }
  return made;
}

}  // namespace engine_python
