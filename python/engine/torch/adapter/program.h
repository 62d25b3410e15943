// Program: what a captured graph is made up of. Python makes it once (lower.py); runs only read it.
//
// A slot holds a value of one run. A call is one operator (or a Python callable) over slots and constants; its stack is
// made from a template that was fixed when the program was made. A node is what the engine orders: one call, or those of one
// parameter's update, and the views of what they make.
//
// Threads:   making it needs the GIL; afterwards any thread may read it.
#pragma once

#include <Python.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "product.h"
#include "update.h"
#include "values.h"

namespace engine_torch {

struct Arg {
  enum class Kind : uint8_t {
    kConstant,
    kSlot,
    kWrapped,
    kTensors,
    kOptionalTensors,
    kInts,
    kFloats,
    kBools,
    kNumbers
  };
  Kind kind = Kind::kConstant;
  bool to_double = false;  // kSlot: the operator takes a float, and the slot may hold an int
  uint32_t slot = 0;
  IValue constant;
  std::vector<Arg> items;  // of a list
};

struct Call {
  std::optional<c10::OperatorHandle> op;  // none: `python` is called
  std::optional<Product> product;         // instead of `op`, for tensors of this form
  std::optional<Update> update;           // instead of `op`
  PyObject* python = nullptr;             // owned; gets the values of its slots as positional arguments
  bool takes_gil = false;                 // the operator's kernel is Python, so its exceptions are, too
  bool grad_mode = false;                 // the kernel asks for it, and keeps what its backward needs only then
  bool changes_state = false;             // it writes an input of the program
  std::vector<Arg> args;
  std::vector<int32_t> outs;  // by output: its slot; -1: nobody needs it
  bool from_list = false;     // the outputs are the elements of the one list that the operator returns
};

struct Node {
  std::string name;  // for profilers
  std::vector<uint32_t> calls;
  std::vector<uint32_t> reads;  // slots whose count of readers goes down when the node has ended
};

struct Frame;

struct Program {
  std::vector<Call> calls;
  std::vector<Node> nodes;
  std::vector<uint32_t> prologue;  // calls that the caller makes before the run: views of inputs, sizes
  std::vector<int32_t> inputs;     // by input: its slot; -1: nobody needs it
  std::vector<Arg> outputs;
  std::vector<std::pair<uint32_t, IValue>> constants;  // slots that hold the same value in every run
  std::vector<int32_t> readers;  // by slot: nodes, and the outputs as one more; -1: never released
  std::mutex mutex;
  std::vector<std::unique_ptr<Frame>> free;  // guarded by mutex

  ~Program();
};

inline constexpr const char* kProgram = "engine_torch.program";
// Of a capsule; null with an exception set.
inline Program* ProgramOf(PyObject* capsule) { return static_cast<Program*>(PyCapsule_GetPointer(capsule, kProgram)); }

}  // namespace engine_torch
