#include "buffer.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "arrays.h"
#include "failure.h"
#include "gil.h"
#include "names.h"
#include "run.h"
#include "site.h"
#include "value.h"

namespace nb = nanobind;

namespace engine_python {
namespace {

using engine::DataType;
using engine::ElementType;

struct Raw {
  ElementType type;
  size_t elements = 1;
  void* address = nullptr;
};

// Reads __cuda_array_interface__: C-contiguous and without a mask. Its `stream` is ignored, because the Vars order the
// uses.
Raw OfInterface(nb::handle interface, bool written, const std::string& what) {
  const auto refuse = [&](const char* why) {
    RaiseError("UsageError", what + ": its __cuda_array_interface__ " + why);
  };
  if (!nb::isinstance<nb::dict>(interface)) refuse("is no dict; the protocol says a dict");
  const nb::dict given = nb::borrow<nb::dict>(interface);
  Raw raw;
  try {
    const std::string type = nb::cast<std::string>(given["typestr"]);
    if (type.size() < 3 || type[0] == '>') refuse("has elements in another byte order; little-endian is expected");
    raw.type = {type[1], static_cast<uint8_t>(std::stoul(type.substr(2)))};
    const auto data = nb::cast<nb::tuple>(given["data"]);
    raw.address = reinterpret_cast<void*>(nb::cast<uintptr_t>(data[0]));
    if (written && nb::cast<bool>(data[1])) refuse("says that it is read-only, and the call writes to it");
    if (given.contains("mask") && !given["mask"].is_none()) refuse("has a mask; give an array without one");
    const auto shape = nb::cast<std::vector<size_t>>(given["shape"]);
    for (const size_t extent : shape) raw.elements *= extent;
    if (!given.contains("strides") || given["strides"].is_none()) return raw;
    const auto strides = nb::cast<std::vector<int64_t>>(given["strides"]);
    auto expected = static_cast<int64_t>(raw.type.bytes);
    for (size_t i = shape.size(); i-- > 0; expected *= static_cast<int64_t>(shape[i]))
      if (shape[i] > 1 && raw.elements > 0 && strides.at(i) != expected)
        refuse("is not C-contiguous; give a contiguous copy");
  } catch (const nb::python_error&) {
    throw;
  } catch (const std::exception&) {
    refuse("lacks a field, or has one of another type than the protocol says");
  }
  return raw;
}

DataType TypeOf(ElementType type, const std::string& what) {
  for (int i = 0; i <= static_cast<int>(DataType::kFloat64); ++i) {
    const auto candidate = static_cast<DataType>(i);
    const char kind = engine::DataTypeName(candidate)[0];  // written as in the array interface
    if (type.kind == kind && type.bytes == SizeOf(candidate)) return candidate;
  }
  RaiseError("UsageError", what + " has elements " + type.text() + "; " +
                               NamesUpTo(DataType::kBfloat16, engine::DataTypeName) +
                               " are allowed (dtype= says what the bytes are to be taken for)");
}

}  // namespace

Buffer ReadBuffer(const GivenBuffer& from, const StatePtr& state, const std::string& what) {
  Buffer buffer;
  nb::object data = nb::borrow(from.given);
  const nb::module_ values = nb::module_::import_("engine.values");
  if (nb::isinstance(from.given, values.attr("Value"))) {
    ValueObject* const value = AsValue(from.given.ptr());
    const bool there =
        !value->run || state->engine.Settled(value->var, CallerSite());  // a pending run may be storing it just now
    data = there ? nb::steal(DataOf(value)) : nb::borrow(Missing());
    if (data.is(Missing()))
      RaiseError("UsageError", what +
                                   " is a Value that is not computed yet; a collective works on memory that is there: "
                                   "engine.value(engine.DeviceArray(...)), which ops before it may fill");
    buffer.value = from.given.ptr();
  }
  Raw raw;
  if (nb::isinstance<PyDeviceArray>(data)) {
    const PyDeviceArray& array = *nb::inst_ptr<PyDeviceArray>(data);
    if (array.engine.lock() != state) RaiseError("UsageError", what + " is an array of another engine");
    if (array.array.device() != from.device)
      RaiseError("UsageError", what + " is an array on device " + std::to_string(array.array.device()) +
                                   "; the communicator is on device " + std::to_string(from.device));
    raw = {array.array.type(), array.array.size(), array.array.address()};
    buffer.owner = std::make_shared<const engine::DeviceArray>(array.array);
  } else if (nb::hasattr(data, "__cuda_array_interface__")) {
    raw = OfInterface(data.attr("__cuda_array_interface__"), from.written, what);
    const std::string kind = Translated([&] { return state->engine.device(from.device).info().kind; });
    if (kind != "cuda")
      RaiseError("UsageError", what + " is memory of CUDA; the communicator is on a device of kind '" + kind + "'");
    buffer.owner = std::make_shared<const PyRef>(PyRef::Borrow(data.ptr()));
  } else {
    RaiseTypeError(what + " is " + ATypeOf(data.ptr()) +
                   "; an engine.DeviceArray, what has __cuda_array_interface__, or a Value of one is expected");
  }
  buffer.address = raw.address;
  buffer.count = raw.elements;
  if (from.dtype.is_none()) {
    buffer.type = TypeOf(raw.type, what);
  } else {
    buffer.type =
        ByName(Text(from.dtype, what + ": dtype"), DataType::kBfloat16, engine::DataTypeName, what + ": dtype");
    const size_t bytes = raw.elements * raw.type.bytes, size = SizeOf(buffer.type);
    if (bytes % size != 0)
      RaiseError("UsageError", what + " has " + std::to_string(bytes) + " bytes, which are no whole number of " +
                                   engine::DataTypeName(buffer.type));
    buffer.count = bytes / size;
  }
  return buffer;
}

}  // namespace engine_python
