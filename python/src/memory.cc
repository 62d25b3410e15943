#include "memory.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings.h"
#include "extent.h"

namespace nb = nanobind;

namespace engine_python {

// Where a Value stands.
struct Placed {
  struct At {
    uint32_t space;  // 0: the host; a device has a number of its own
    Extent extent;
  };
  std::vector<At> all;
};

namespace {

struct Entry {
  Extent extent;
  ValueObject* value;
};
// An extent of up to 2**k bytes stands in the cell of that size in which it begins, so what overlaps others begins in one of their
// cells or in the one before. A look takes a step for each size that is there, whatever the number of Values.
using Cells = std::unordered_map<uintptr_t, std::vector<Entry>>;
using Key = std::pair<uint32_t, int>;  // space and k

// Never destroyed: Values may go when the process ends.
auto& cells = *new std::map<Key, Cells>;
auto& young = *new std::vector<ValueObject*>;
auto& spaces = *new std::unordered_map<std::string, uint32_t>{{"host", 0}};
PyObject* memory_of = nullptr;  // engine/alias.py: memory_of(data) -> [(space, low, high)]

int SizeOf(const Extent& extent) { return std::bit_width(extent.high - extent.low - 1); }

// Whether all that it has lies between its first byte and its last, wherever an op writes in it.
bool IsPlainArray(PyObject* data) { return IsNdarray(Py_TYPE(data)) && !HoldsObjects(data); }

void Place(ValueObject* value, std::vector<Placed::At> where) {
  std::erase_if(where, [](const Placed::At& at) { return at.extent.low >= at.extent.high; });
  if (where.empty()) return;
  for (const Placed::At& at : where) {
    const int size = SizeOf(at.extent);
    cells[{at.space, size}][at.extent.low >> size].push_back({at.extent, value});
  }
  value->placed = new Placed{std::move(where)};
}

void Unplace(ValueObject* value) {
  const Placed* const placed = std::exchange(value->placed, nullptr);
  for (const Placed::At& at : placed->all) {
    const int size = SizeOf(at.extent);
    const auto of_size = cells.find({at.space, size});
    if (of_size == cells.end()) continue;  // a part in the same cell came before it, and was the last there
    const auto cell = of_size->second.find(at.extent.low >> size);
    if (cell == of_size->second.end()) continue;
    std::erase_if(cell->second, [&](const Entry& entry) { return entry.value == value; });
    if (cell->second.empty()) of_size->second.erase(cell);
    if (of_size->second.empty()) cells.erase(of_size);
  }
  delete placed;
}

void Grow(ValueObject* value) {  // it is young no longer
  const size_t at = std::exchange(value->young, 0) - 1;
  young[at] = young.back();
  young[at]->young = at + 1;
  young.pop_back();
  value->young = 0;
}

std::vector<Placed::At> Read(nb::handle extents) {
  std::vector<Placed::At> where;
  for (nb::handle extent : extents) {
    const auto next = static_cast<uint32_t>(spaces.size());
    const uint32_t space = spaces.try_emplace(nb::cast<std::string>(extent[0]), next).first->second;
    where.push_back({space, {nb::cast<uintptr_t>(extent[1]), nb::cast<uintptr_t>(extent[2])}});
  }
  return where;
}

// Where the data lie. It may run code of Python, which may give the GIL up.
std::vector<Placed::At> Find(PyObject* data) {
  Extent extent;
  if (IsPlainArray(data) && ExtentOf(data, &extent)) return {{0, extent}};
  nb::object found = nb::steal(PyObject_CallOneArg(memory_of, data));
  if (found.is_valid()) return Read(found);
  // Ctrl-C is raised, and the data stay unplaced; what an object cannot say of its memory is not known.
  if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) throw nb::python_error();
  PyErr_Clear();
  return {};
}

void PlaceYoung() {
  std::vector<nb::object> now;  // another thread may place the same ones meanwhile, which does no harm
  for (ValueObject* value : young) now.push_back(nb::borrow(reinterpret_cast<PyObject*>(value)));
  for (const nb::object& one : now) {
    ValueObject* const value = AsValue(one.ptr());
    nb::object data = nb::steal(DataOf(value));
    if (!value->young || value->run) continue;  // a run has still to make its data
    std::vector<Placed::At> where = Find(data.ptr());
    if (!value->young || value->data != data.ptr()) continue;
    Grow(value);
    Place(value, std::move(where));
  }
}

// The Values that have memory there, or had it when their data were set or changed by an op.
nb::list ValuesAt(nb::handle extents) {
  PlaceYoung();
  nb::list made;  // before the look: what is made may have the collector run, and Values go
  std::vector<ValueObject*> found;
  for (const Placed::At& asked : Read(extents)) {
    const auto [low, high] = asked.extent;
    if (low >= high) continue;
    for (const auto& [key, of_size] : cells) {
      if (key.first != asked.space) continue;
      const auto look = [&](const std::vector<Entry>& entries) {
        for (const Entry& entry : entries)
          if (entry.extent.low < high && low < entry.extent.high) found.push_back(entry.value);
      };
      const uintptr_t begin = low >> key.second, first = begin ? begin - 1 : 0, last = (high - 1) >> key.second;
      if (last - first < of_size.size()) {
        for (uintptr_t at = first; at <= last; ++at)
          if (const auto cell = of_size.find(at); cell != of_size.end()) look(cell->second);
      } else {
        for (const auto& [at, entries] : of_size)
          if (first <= at && at <= last) look(entries);
      }
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  for (ValueObject* value : found) made.append(nb::borrow(reinterpret_cast<PyObject*>(value)));
  return made;
}

}  // namespace

void Noted(ValueObject* value) {
  Forgotten(value);
  if (!value->run && !(value->data && MayHaveMemory(value->data))) return;
  young.push_back(value);
  value->young = young.size();
}

void Changed(ValueObject* value) {
  if (value->placed && !(value->data && IsPlainArray(value->data))) Noted(value);
}

void Forgotten(ValueObject* value) {
  if (value->young) Grow(value);
  if (value->placed) Unplace(value);
}

void BindMemory(nb::module_& m) {
  m.def(
      "_set_memory_of", [](nb::handle find) { memory_of = Py_NewRef(find.ptr()); }, nb::arg("memory_of"));
  m.def("_values_at", &ValuesAt, nb::arg("extents"),
        nb::sig("def _values_at(extents: Iterable[tuple[str, int, int]]) -> list[Any]"));
  m.def(
      "_known_memory",
      [] {
        size_t entries = 0;
        for (const auto& [key, of_size] : cells)
          for (const auto& [at, all] : of_size) entries += all.size();
        return std::pair(entries, cells.size());
      },
      nb::sig("def _known_memory() -> tuple[int, int]"),
      "How many extents of Values are known, and of how many sizes. For tests.");
}

}  // namespace engine_python
