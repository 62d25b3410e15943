// Arrays: typed buffers, row by row, on the host and on a device. A step's staged part on the host hands them to its
// part on a device (SmartStageOptions::stage_subgraph_on_cpu).
//
//   ctx.Return(0, engine::HostArray::Of(std::vector<float>(32 * 13), {32, 13}));       // a staged node
//   const engine::DeviceArray& rows = ctx.In<engine::DeviceArray>(0);                  // a node on a GPU
//   Forward<<<grid, block, 0, CudaStream(ctx)>>>(rows.data<float>(), rows.shape()[0]);
//
// Threads:   plain values; whoever hands an array on orders the uses of its memory.
// Ownership: copies of an array share its memory, and the last copy frees it; device memory is given back as
//            device_memory.h says.
// Errors:    UsageError for a shape that does not fit the elements, and for elements that are asked for as another
//            type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/device/device_memory.h"
#include "engine/op.h"
#include "engine/value.h"

namespace engine {

// The type of an element, as NumPy's array interface has it.
struct ElementType {
  char kind = 'u';  // b: bool, i: signed, u: unsigned, f: floating point, c: complex, V: anything else
  uint8_t bytes = 1;
  template <class T>
  static constexpr ElementType Of() noexcept {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) < 256);
    constexpr char kKind = std::is_same_v<T, bool>       ? 'b'
                           : std::is_floating_point_v<T> ? 'f'
                           : !std::is_integral_v<T>      ? 'V'
                           : std::is_signed_v<T>         ? 'i'
                                                         : 'u';
    return {kKind, sizeof(T)};
  }
  std::string text() const;  // "<f4"
  friend bool operator==(ElementType, ElementType) noexcept = default;
};

// Array: what HostArray and DeviceArray have in common. Contiguous; the last dimension varies fastest.
class Array {
 public:
  ElementType type() const noexcept { return type_; }
  const std::vector<int64_t>& shape() const noexcept { return shape_; }
  size_t size() const noexcept { return size_; }  // elements
  size_t bytes() const noexcept { return size_ * type_.bytes; }
  void* address() const noexcept { return data_; }

 protected:
  // `owner` keeps `data` alive.
  Array(ElementType type, std::vector<int64_t> shape, void* data, std::shared_ptr<const void> owner);
  void* Data(ElementType wanted) const;

 private:
  ElementType type_;
  std::vector<int64_t> shape_;
  size_t size_ = 1;
  void* data_;
  std::shared_ptr<const void> owner_;
};

class HostArray : public Array {
 public:
  HostArray(ElementType type, std::vector<int64_t> shape, const void* data, std::shared_ptr<const void> owner)
      : Array(type, std::move(shape), const_cast<void*>(data), std::move(owner)) {}
  // An array of a vector's elements, without a copy. It has one dimension, unless `shape` says otherwise.
  template <class T>
  static HostArray Of(std::vector<T> elements, std::vector<int64_t> shape = {}) {
    static_assert(!std::is_same_v<T, bool>, "a vector<bool> has no elements in memory");
    if (shape.empty()) shape = {static_cast<int64_t>(elements.size())};
    const size_t count = elements.size();
    const auto owner = std::make_shared<const std::vector<T>>(std::move(elements));
    HostArray array(ElementType::Of<T>(), std::move(shape), owner->data(), owner);
    array.CheckSize(count);
    return array;
  }
  template <class T>
  const T* data() const {
    return static_cast<const T*>(Data(ElementType::Of<T>()));
  }

 private:
  void CheckSize(size_t elements) const;
};

class DeviceArray : public Array {
 public:
  DeviceArray(ElementType type, std::vector<int64_t> shape, void* data, std::shared_ptr<const void> owner, int device)
      : Array(type, std::move(shape), data, std::move(owner)), device_(device) {}
  int device() const noexcept { return device_; }  // the device's number, as in Gpu(i)
  template <class T>
  T* data() const {
    return static_cast<T*>(Data(ElementType::Of<T>()));
  }

 private:
  int device_;
};

// Crossing: a value on its way from the host to a device. `arrays` are the arrays in `from`, `copies` are the same
// arrays on the device, and `to` takes the place of `from` there.
struct Crossing {
  Name name;
  Value& from;
  Value& to;
  bool last;  // nobody else needs `from`, so it may be moved
  std::vector<HostArray> arrays = {};
  std::vector<DeviceArray> copies = {};
};

// CrossingArrays: finds the arrays in values. This class knows values that are a HostArray, and makes them a
// DeviceArray; other values pass through. A front end with objects of its own derives from it. Several threads of a
// copy lane may call it at once.
class CrossingArrays {
 public:
  virtual ~CrossingArrays() = default;
  virtual void Find(std::span<Crossing> values) const;     // fills `arrays` of each
  virtual void Replace(std::span<Crossing> values) const;  // fills `to` of each
};

}  // namespace engine
