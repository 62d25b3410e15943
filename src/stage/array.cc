#include "engine/device/array.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "engine/error.h"

namespace engine {

std::string ElementType::text() const {
  const char order = bytes == 1 ? '|' : std::endian::native == std::endian::little ? '<' : '>';
  return order + (kind + std::to_string(bytes));
}

Array::Array(ElementType type, std::vector<int64_t> shape, void* data, std::shared_ptr<const void> owner)
    : type_(type), shape_(std::move(shape)), data_(data), owner_(std::move(owner)) {
  for (const int64_t extent : shape_) {
    if (extent < 0) throw UsageError("an array has an extent of " + std::to_string(extent) + "; 0 or more is expected");
    if (__builtin_mul_overflow(size_, static_cast<size_t>(extent), &size_) ||
        size_ > PTRDIFF_MAX / std::max<size_t>(1, type_.bytes))
      throw UsageError("an array's shape has more elements than memory can have");
  }
}

void* Array::Data(ElementType wanted) const {
  if (wanted == type_) return data_;
  throw UsageError("an array of '" + type_.text() + "' is read as one of '" + wanted.text() +
                   "'; ask for its own type");
}

void HostArray::CheckSize(size_t elements) const {
  if (elements == size()) return;
  throw UsageError("an array's shape has " + std::to_string(size()) + " elements, and it is given " +
                   std::to_string(elements));
}

void CrossingArrays::Find(std::span<Crossing> values) const {
  for (Crossing& value : values)
    if (const HostArray* array = value.from.If<HostArray>()) value.arrays.push_back(*array);
}

void CrossingArrays::Replace(std::span<Crossing> values) const {
  for (Crossing& value : values) {
    if (!value.copies.empty()) {
      value.to = std::move(value.copies.front());
    } else if (value.last) {
      value.to = std::move(value.from);
    } else {
      throw UsageError("value '" + std::string(value.name.c_str()) +
                       "' is used on the host and on a device, and is no HostArray, so it cannot be in both places: "
                       "make it one, or two values");
    }
  }
}

}  // namespace engine
