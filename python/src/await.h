// Await: how coroutines hear of Values.
//
// A Value is *fresh* while the op that makes it has yet to run, will run for certain, and nobody has pushed another op that
// changes it. Whoever awaits a fresh Value leaves its future with it, and the op's own body tells the future when the op has
// ended: with the GIL that it has anyway, and without an op more. Any other Value is awaited by an op that reads it.
//
// Threads:   the GIL guards what is here.
// Order:     a coroutine gets the data of its place in the order. Before an op is pushed that changes an awaited Value,
//            `Aged` pushes the ops for those that await it.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "engine/op.h"
#include "value.h"

namespace engine_python {

// Others may push ops that change the Value, or what it shares its memory with. It is fresh no longer, and ops tell those that
// await it.
void Age(ValueObject* value);
inline void Aged(ValueObject* value) {
  if (value->fresh || value->shares) Age(value);
}

// Those who await the outputs of a call that is running.
class Awaiting {
 public:
  // `outputs`: a Value, a tuple of Values, or null. They are fresh no longer.
  explicit Awaiting(PyObject* outputs);
  explicit operator bool() const { return !told_.empty(); }
  // Ends the op, which has succeeded and whose Values have their data, and tells the futures.
  void End(engine::RunContext& context);
  // The op fails with `thrown` when its body ends. Ops behind it tell the futures, with what a wait would raise.
  void EndBehind(const std::exception_ptr& thrown);

 private:
  struct Told {
    nanobind::object value, futures;  // a list of (post, future)
  };
  std::vector<Told> told_;
};

// Called in a fork's child, where the runs that waited are gone.
void ForgetAsides() noexcept;

}  // namespace engine_python
