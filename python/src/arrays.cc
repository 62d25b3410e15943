#include "arrays.h"

#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/device/device.h"
#include "failure.h"
#include "gil.h"
#include "run.h"
#include "site.h"
#include "wait.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

using engine::DeviceArray;
using engine::ElementType;
using engine::HostArray;

// The element type for a format of the buffer protocol; nothing if the format is not one of numbers in this machine's
// order.
std::optional<ElementType> TypeOf(const Py_buffer& buffer) {
  std::string_view format = buffer.format ? buffer.format : "B";
  constexpr std::string_view kNative = "@=<";  // this code is built only for little-endian machines
  if (!format.empty() && kNative.find(format.front()) != kNative.npos) format.remove_prefix(1);
  char kind = 0;
  if (format == "?") kind = 'b';
  if (format.size() == 1 && std::string_view("bhilqn").find(format[0]) != std::string_view::npos) kind = 'i';
  if (format.size() == 1 && std::string_view("cBHILQN").find(format[0]) != std::string_view::npos) kind = 'u';
  if (format.size() == 1 && std::string_view("efdg").find(format[0]) != std::string_view::npos) kind = 'f';
  if (format.size() == 2 && format[0] == 'Z') kind = 'c';
  if (!kind) return {};
  return ElementType{kind, static_cast<uint8_t>(buffer.itemsize)};
}

PyRef Checked(PyObject* result) {
  if (!result) throw PyFailure::Fetch();
  return PyRef::Steal(result);
}

// The NumPy array that shares the memory of a framework's tensor, if that lies on the host; nothing for other objects.
// Throws PyFailure for a tensor that NumPy has no type for: passed through, it would be taken for one that was copied.
PyRef ArrayOfTensor(PyObject* object) {
  constexpr long kHost = 1, kPinned = 3;  // DLPack's kDLCPU and kDLCUDAHost
  if (!PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__dlpack_device__")) return {};
  const PyRef device = PyRef::Steal(PyObject_CallMethod(object, "__dlpack_device__", nullptr));
  if (!device) {
    ForgetError();  // it is on a device that DLPack does not know
    return {};
  }
  const PyRef kind = Checked(PySequence_GetItem(device.get(), 0));
  const PyRef number = Checked(PyNumber_Long(kind.get()));
  const long where = PyLong_AsLong(number.get());
  if (where != kHost && where != kPinned) return {};
  const PyRef data = PyObject_HasAttrString(object, "detach") ? Checked(PyObject_CallMethod(object, "detach", nullptr))
                                                              : PyRef::Borrow(object);
  const PyRef numpy = Checked(PyImport_ImportModule("numpy"));
  return Checked(PyObject_CallMethod(numpy.get(), "asarray", "O", data.get()));
}

// The array that an object is. It keeps the object's export, and so its memory, alive. GIL held.
std::optional<HostArray> ArrayOf(PyObject* object) {
  PyRef tensor;
  if (!PyObject_CheckBuffer(object)) {
    tensor = ArrayOfTensor(object);
    if (!tensor) return {};
    object = tensor.get();
  }
  PyRef view = PyRef::Steal(PyMemoryView_GetContiguous(object, PyBUF_READ, 'C'));
  if (!view) {
    ForgetError();  // the buffer protocol has no format for its items
    return {};
  }
  const Py_buffer& buffer = *PyMemoryView_GET_BUFFER(view.get());
  const auto type = TypeOf(buffer);
  if (!type || buffer.ndim == 0) return {};
  std::vector<int64_t> shape(buffer.shape, buffer.shape + buffer.ndim);
  return HostArray(*type, std::move(shape), buffer.buf, std::make_shared<const PyRef>(std::move(view)));
}

void Collect(PyObject* object, std::vector<HostArray>* found) {
  if (PyDict_CheckExact(object) || PyList_CheckExact(object) || PyTuple_CheckExact(object)) {
    EachItem(object, [&](PyObject* item) { Collect(item, found); });
  } else if (auto array = ArrayOf(object)) {
    found->push_back(std::move(*array));
  }
}

class Arrays final : public engine::CrossingArrays {
 public:
  explicit Arrays(std::weak_ptr<EngineState> engine) : engine_(std::move(engine)) {}

  void Find(std::span<engine::Crossing> values) const override {
    const PythonScope python;
    for (engine::Crossing& value : values) Collect(value.from.Get<PyRef>().get(), &value.arrays);
  }
  void Replace(std::span<engine::Crossing> values) const override {
    const PythonScope python;
    for (engine::Crossing& value : values) {
      size_t next = 0;
      value.to = PyRef::Steal(Rebuilt(value.from.Get<PyRef>().get(), value, &next).release().ptr());
      if (next != value.copies.size()) throw engine::UsageError(kChanged);
    }
  }

 private:
  static constexpr const char* kChanged =
      "an item of a stage has other arrays than when its copy to the device began; leave an item as it is once the "
      "source has "
      "given it";
  // The object with its arrays replaced, in the order in which Collect found them; the object itself if it has none.
  nb::object Rebuilt(nb::handle object, const engine::Crossing& value, size_t* next) const {
    if (value.copies.empty()) return nb::borrow(object);
    if (PyDict_CheckExact(object.ptr())) {
      nb::dict out;
      for (nb::handle pair : nb::borrow<nb::dict>(object).items()) out[pair[0]] = Rebuilt(pair[1], value, next);
      return out;
    }
    if (PyList_CheckExact(object.ptr()) || PyTuple_CheckExact(object.ptr())) {
      nb::list out;
      for (nb::handle item : object) out.append(Rebuilt(item, value, next));
      if (PyTuple_CheckExact(object.ptr())) return nb::tuple(out);
      return out;
    }
    if (!ArrayOf(object.ptr())) return nb::borrow(object);
    if (*next == value.copies.size()) throw engine::UsageError(kChanged);
    return nb::cast(PyDeviceArray{value.copies[(*next)++], engine_}, nb::rv_policy::move);
  }

  const std::weak_ptr<EngineState> engine_;
};

void Check(engine::DeviceStatus status) {
  if (!status.ok()) throw engine::DeviceError(std::move(status));
}

nb::object ShapeOf(const PyDeviceArray& self) {
  nb::list out;
  for (const int64_t extent : self.array.shape()) out.append(extent);
  return nb::tuple(out);
}

StatePtr Alive(const PyDeviceArray& self) {
  StatePtr state = self.engine.lock();
  if (!state) RaiseNoEngine("the array");
  return state;
}

// The array in `given`; otherwise TypeError that names `what`.
HostArray HostOf(nb::handle given, const char* what) {
  std::optional<HostArray> host = Translated([&] { return ArrayOf(given.ptr()); });
  if (!host)
    RaiseTypeError(std::string(what) + " is " + ATypeOf(given.ptr()) +
                   "; a NumPy array, or another buffer of numbers with a dimension, is expected");
  return std::move(*host);
}

// Copies the array to the device and waits for that. The copy is an op on the device's copy lane, whose memory comes
// from the engine's pool.
PyDeviceArray Made(nb::handle given, int device, nb::handle engine) {
  struct Copy {  // outlives a wait that Ctrl-C interrupted
    HostArray from;
    engine::DeviceMemory memory = {};
  };
  const StatePtr state = StateOf(engine, "DeviceArray");
  const auto copy = std::make_shared<Copy>(Copy{HostOf(given, "DeviceArray: array")});
  const engine::Site site = CallerSite();
  engine::Var done;
  Translated([&] {
    PushWithoutGil([&] {
      (void)state->engine.device(device);  // throws if there is no such device
      done = state->engine.NewVar("DeviceArray");
      const auto run = [copy](engine::RunContext& ctx) {
        const size_t bytes = copy->from.bytes();
        if (bytes == 0) return;
        copy->memory = ctx.Allocate(bytes);
        Check(ctx.device().CopyIn(copy->memory.data(), copy->from.address(), bytes, ctx.stream()));
      };
      state->engine.Push(
          {.name = "DeviceArray", .writes = done, .place = engine::CopyIn(static_cast<uint16_t>(device))}, run, site);
    });
  });
  WaitVar({done, state}, TimeoutOf(nb::none()));
  const auto memory = std::make_shared<const engine::DeviceMemory>(std::move(copy->memory));
  return {DeviceArray(copy->from.type(), copy->from.shape(), memory->data(), memory, device), state};
}

// One copy on a stream of its own, which is over when this returns. Gives the GIL up.
template <class Issue>
void CopyNow(const PyDeviceArray& self, Issue&& issue) {
  const StatePtr state = Alive(self);
  Translated([&] {
    WithoutGil([&] {
      engine::Device& device = state->engine.device(self.array.device());
      engine::Stream stream;
      Check(device.CreateStream(0, &stream));
      engine::DeviceStatus status = issue(device, stream);
      if (status.ok()) status = device.Synchronize(stream);
      (void)device.DestroyStream(stream);
      Check(std::move(status));
    });
  });
}

nb::object ToHost(const PyDeviceArray& self) {
  nb::object out = nb::module_::import_("numpy").attr("empty")(ShapeOf(self), self.array.type().text());
  const nb::object place = out.attr("ctypes").attr("data");
  void* const to = reinterpret_cast<void*>(nb::cast<uintptr_t>(place));
  CopyNow(self, [&](engine::Device& device, engine::Stream stream) {
    return device.CopyOut(to, self.array.address(), self.array.bytes(), stream);
  });
  return out;
}

void FromHost(const PyDeviceArray& self, nb::handle given) {
  const HostArray from = HostOf(given, "from_host: array");
  const auto text = [](const engine::Array& array) {
    std::string shape;
    for (const int64_t extent : array.shape()) shape += (shape.empty() ? "" : ", ") + std::to_string(extent);
    return array.type().text() + " of shape (" + shape + ")";
  };
  if (from.type() != self.array.type() || from.shape() != self.array.shape())
    RaiseError("UsageError", "from_host: array is " + text(from) + "; " + text(self.array) + " is expected");
  CopyNow(self, [&](engine::Device& device, engine::Stream stream) {
    return device.CopyIn(self.array.address(), from.address(), from.bytes(), stream);
  });
}

nb::dict InterfaceOf(const PyDeviceArray& self) {
  nb::dict out;
  out["shape"] = ShapeOf(self);
  out["typestr"] = self.array.type().text();
  out["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(self.array.address()), false);
  out["version"] = 3;
  out["strides"] = nb::none();
  out["stream"] = nb::none();  // none: the copy was over before the op began
  return out;
}

nb::dict CudaInterface(const PyDeviceArray& self) {
  const StatePtr state = Alive(self);
  const std::string kind = state->engine.device(self.array.device()).info().kind;
  if (kind == "cuda") return InterfaceOf(self);
  PyErr_Format(PyExc_AttributeError, "an array on a device of kind '%s' has no __cuda_array_interface__", kind.c_str());
  throw nb::python_error();
}

}  // namespace

std::shared_ptr<const engine::CrossingArrays> PythonArrays(std::weak_ptr<EngineState> engine) {
  return std::make_shared<const Arrays>(std::move(engine));
}

void BindArrays(nb::module_& m) {
  nb::class_<PyDeviceArray>(
      m, "DeviceArray",
      "An array on a device, in C order. Under stage_subgraph_on_cpu an op on that device gets it for each\n"
      "NumPy array or other buffer of numbers. DeviceArray(array, device=0, engine=None) copies `array` into the\n"
      "engine's memory of that device. Vars say which ops may use it when: engine.value(DeviceArray(...))\n"
      "gives it one.\n"
      "On CUDA a framework takes it by __cuda_array_interface__, without a copy: torch.as_tensor(x,\n"
      "device='cuda').")
      .def(
          "__init__",
          [](PyDeviceArray* self, nb::handle array, int device, nb::handle engine) {
            new (self) PyDeviceArray(Made(array, device, engine));
          },
          nb::arg("array"), nb::arg("device") = 0, nb::arg("engine") = nb::none(),
          nb::sig("def __init__(self, array: Any, device: int = 0, engine: Engine | None = None) -> None"),
          "Waits for the copy, so do not call it in the body of an op on that device. TypeError if `array` is\n"
          "no buffer of numbers, UsageError for a device that the engine does not have.")
      .def_prop_ro(
          "address", [](const PyDeviceArray& self) { return reinterpret_cast<uintptr_t>(self.array.address()); },
          "Where it lies on the device.")
      .def_prop_ro("shape", &ShapeOf, nb::sig("def shape(self) -> tuple[int, ...]"), "Items along each dimension.")
      .def_prop_ro(
          "dtype",
          [](const PyDeviceArray& self) {
            return nb::module_::import_("numpy").attr("dtype")(self.array.type().text());
          },
          nb::sig("def dtype(self) -> Any"), "As NumPy has it.")
      .def_prop_ro(
          "nbytes", [](const PyDeviceArray& self) { return self.array.bytes(); }, "Bytes of all its items.")
      .def_prop_ro(
          "device", [](const PyDeviceArray& self) { return self.array.device(); },
          "The number of the device, as engine.gpu takes it.")
      .def("to_host", &ToHost, nb::sig("def to_host(self) -> Any"),
           "A copy as a NumPy array. Waits for the device, so do not call it in the body of an op there, but\n"
           "after a wait, or in an op on the host that reads the array's Var.")
      .def("from_host", &FromHost, nb::arg("array"), nb::sig("def from_host(self, array: Any) -> None"),
           "Copies `array` into this one. UsageError unless shape and dtype are the same. Waits for the device,\n"
           "so do not call it in the body of an op there, but in an op on the host that writes the array's Var.")
      .def_prop_ro("__cuda_array_interface__", &CudaInterface,
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, Any]"))
      .def("_interface", &InterfaceOf, nb::sig("def _interface(self) -> dict[str, Any]"),
           "What __cuda_array_interface__ is, also on devices that are not CUDA's.")
      .def("__repr__", [](const PyDeviceArray& self) {
        return "<engine.DeviceArray " + self.array.type().text() + " of " + std::to_string(self.array.size()) +
               " on device " + std::to_string(self.array.device()) + ">";
      });
}

}  // namespace engine_python
