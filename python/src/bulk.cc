// The binding of the bulk size. Pushes need nothing here, because the engine sends them to the thread's bulk by itself.
#include "engine/bulk.h"

#include "bindings.h"
#include "failure.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// Keeps the GIL: the ops that a bulk releases are queued, and no body ever runs inside the call.
int SetBulkSize(const PyEngine& self, nb::handle size) {
  if (!PyLong_Check(size.ptr()) || PyBool_Check(size.ptr()))
    RaiseTypeError(std::string("set_bulk_size: size is a ") + Py_TYPE(size.ptr())->tp_name + "; an int is expected");
  int overflow = 0;
  const long value = PyLong_AsLongAndOverflow(size.ptr(), &overflow);
  if (overflow || value < 0 || value > engine::kMaxBulkSize)
    RaiseError("UsageError", std::string("set_bulk_size: size is ") + nb::str(size).c_str() + "; 0 (no bulk) to " +
                                 std::to_string(engine::kMaxBulkSize) + " are allowed");
  try {
    return engine::SetBulkSize(self.state->engine, static_cast<int>(value));
  } catch (...) {
    Raise(std::current_exception());
  }
}

}  // namespace

void BindBulk(nb::class_<PyEngine>& cls) {
  cls.def("set_bulk_size", &SetBulkSize, nb::arg("size").none(), nb::sig("def set_bulk_size(self, size: int) -> int"),
          "Sets the bulk size of the calling thread for its later pushes; returns the size before. See\n"
          "engine.bulk.");
}

}  // namespace engine_python
