// The binding of the bulk size. Pushes need nothing here, because the engine sends them to the thread's bulk by itself.
#include "engine/bulk.h"

#include <utility>

#include "bindings.h"
#include "failure.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

// Keeps the GIL: the ops that a bulk releases are queued, and no body ever runs inside the call.
int SetBulkSize(const PyEngine& self, nb::handle size) {
  if (!PyLong_Check(size.ptr()) || PyBool_Check(size.ptr()))
    RaiseTypeError(std::string("set_bulk_size: size is ") + ATypeOf(size.ptr()) + "; an int is expected");
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

// `with engine.bulk(15):`. In C++, so that Ctrl-C comes before the block is entered or after it is left, and never between.
struct BulkBlock {
  nb::object engine, size;
  int before = 0;
  unsigned long thread = 0;  // that entered it; 0: it is not open

  void Enter() {
    if (thread) RaiseError("UsageError", "bulk: this block was entered already; make another one for each `with`");
    before = SetBulkSize(*nb::inst_ptr<PyEngine>(engine), size);
    thread = PyThread_get_thread_ident();
  }
  void Exit() {
    if (thread != PyThread_get_thread_ident())
      RaiseError("UsageError",
                 "bulk: the block was entered on another thread, whose bulk size stays as the block set it; leave the "
                 "block on the thread that entered it");
    thread = 0;
    SetBulkSize(*nb::inst_ptr<PyEngine>(engine), nb::int_(before));
  }
};

}  // namespace

void BindBulk(nb::module_& m, nb::class_<PyEngine>& cls) {
  nb::class_<BulkBlock>(m, "BulkBlock", "What engine.bulk(...) returns: a block with a bulk size of its own.")
      .def(
          "__init__",
          [](BulkBlock* self, nb::handle engine, nb::handle size) {
            if (!nb::isinstance<PyEngine>(engine))
              RaiseTypeError(std::string("bulk: engine is ") + ATypeOf(engine.ptr()) + "; an Engine is expected");
            new (self) BulkBlock{nb::borrow(engine), nb::borrow(size)};
          },
          nb::arg("engine").none(), nb::arg("size").none(),
          nb::sig("def __init__(self, engine: Engine, size: int) -> None"))
      .def("__enter__", &BulkBlock::Enter, nb::sig("def __enter__(self) -> None"))
      .def(
          "__exit__", [](BulkBlock& self, nb::args) { self.Exit(); },
          nb::sig("def __exit__(self, *exc: object) -> None"));
  cls.def("set_bulk_size", &SetBulkSize, nb::arg("size").none(), nb::sig("def set_bulk_size(self, size: int) -> int"),
          "Sets the bulk size of the calling thread for its later pushes; returns the size before. See\n"
          "engine.bulk.");
}

}  // namespace engine_python
