// Op: what a call of an engine.op does, eagerly or in a plan: takes Values out of the arguments, calls the function with
// their data, and stores what it returns.
//
// Threads:   calls with the GIL held; bodies run on workers, which take it.
// Ownership: an OpCore is shared by the Python object, its pushed calls and its nodes. A pushed call keeps its arguments
//            until it has run.
// Errors:    what the function raises leaves the body as a PyFailure.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/graph.h"
#include "engine/op.h"
#include "gil.h"
#include "handle.h"

namespace engine_python {

// What is the same in all calls of an op. The callables of Python that it names are in engine/ops.py and engine/alias.py.
struct OpCore {
  PyRef fn;
  engine::Name name;
  uint32_t outputs = 0;
  struct Updated {
    PyRef name;      // of the parameter, interned
    int place = -1;  // among the positional arguments; -1: it is given by name only
  };
  std::vector<Updated> updates;
  PyRef bytes;  // what a pending call counts as under max_pending_bytes: an int, a callable, or None: what is known
  // Of the last result of a counted call; the GIL guards it. Before the first one a result counts as an eighth of the bound.
  static constexpr uint64_t kUnknownBytes = ~uint64_t{0};
  mutable uint64_t result_bytes = kUnknownBytes;
  PyRef place;  // as engine.push takes them
  PyRef graph_key;
  int priority = 0;
  bool run_always = false;
  bool collective = false;
  size_t needed = 0, most = 0;  // positional arguments of a call without names
  // Calls by name that were right: how many positional arguments they had, and the names of the others. The GIL guards
  // them.
  struct Shape {
    size_t positional;
    PyRef names;
  };
  static constexpr size_t kMostChecked = 16;  // a function with **kwargs may be called with ever new names
  mutable std::vector<Shape> checked;
  bool Checked(size_t positional, PyObject* names) const;
  bool copies = true;  // outputs that share memory with an argument are copied; else they name the arguments' Vars
};
using OpCorePtr = std::shared_ptr<const OpCore>;
const OpCorePtr& CoreOfOp(PyObject* op);

// What a body does with an op, with the GIL held; all throw PyFailure (op_results.cc).
// TypeError if `data` is to be changed in place and cannot be.
void CheckUpdated(const OpCore& op, PyObject* data);
// Calls the function with `count` arguments, the last of which have the names in the tuple `names`, or null.
nanobind::object Run(const OpCore& op, PyObject* const* args, size_t count, PyObject* names);
// What the function was given.
struct GivenArguments {
  PyObject* const* all;
  size_t count;
  uint64_t values;  // which are, or hold, data of Values: bit i for argument i, the last bit for all behind it
  bool IsValue(size_t i) const { return values >> (i < 63 ? i : 63) & 1; }
};
// The outputs in `result`, checked, as new references. What shares memory with another output, an argument or some Value, or is
// somebody else's, too, is copied; with alias="order" what shares it with Values among the arguments is not.
void Outputs(const OpCore& op, nanobind::object result, const GivenArguments& given, PyObject** out);

// Whether nobody else has what has one reference, so that it shares memory with nothing.
bool IsOwn(PyObject* data);

// What the function of an op puts into a list, dict, set, deque or dataclass that it updates: what shares memory with
// another argument is replaced by a copy, because that and what is updated have different Vars (op_stored.cc).
class Stored {
 public:
  // Before the call: the op updates argument `at`. Nothing is looked at if that is an array, or if no other argument may
  // have memory; else each item in the container that may, too, in less than 0.1 us.
  void Watch(const GivenArguments& given, size_t at);
  // The call. Throws PyFailure; then, too, what was put there is separated.
  nanobind::object Run(const OpCore& op, const GivenArguments& given, PyObject* names);

 private:
  struct Part {
    nanobind::object data;
    bool inside;  // it is a container, too
  };
  struct Watched {
    PyObject* container;
    std::vector<Part> before;  // what may share memory in it, and in containers in it
  };
  void Separate(const GivenArguments& given);
  std::vector<Watched> watched_;
};

void BindOpNodes(nanobind::module_& m);
void BindOpResults(nanobind::module_& m);
void BindOpStored(nanobind::module_& m);

}  // namespace engine_python
