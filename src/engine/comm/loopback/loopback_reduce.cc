// The arithmetic of loopback's reductions. Ranks are reduced in their order, so a result always has the same bits.
#include <bit>
#include <cmath>
#include <type_traits>

#include "comm/loopback/loopback_world.h"

namespace engine::detail {
namespace {

struct Half {
  uint16_t bits;
  static float Load(uint16_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 0x1f, fraction = h & 0x3ff;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return std::copysign(std::ldexp(static_cast<float>(fraction), -24), std::bit_cast<float>(sign));
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  }
  static uint16_t Store(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000u;
    const float size = std::fabs(value);
    if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00u);
    if (size >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00u);
    // In units of the result's last place. nearbyint rounds halves to even.
    const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
    const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(exponent + 14) << 10) + units));
  }
};
struct Brain {
  uint16_t bits;
  static float Load(uint16_t b) { return std::bit_cast<float>(uint32_t{b} << 16); }
  static uint16_t Store(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  }
};

template <class T>
auto Widened(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else {
    return T::Load(value.bits);
  }
}

template <class V>
V Combine(V a, V b, Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
    case Reduction::kAverage: return static_cast<V>(a + b);
    case Reduction::kProduct: return static_cast<V>(a * b);
    case Reduction::kMax: return a < b ? b : a;
    case Reduction::kMin: return b < a ? b : a;
  }
  return a;
}

template <class T>
void Reduce(void* result, const std::vector<const void*>& inputs, size_t count, Reduction reduction) {
  T* const out = static_cast<T*>(result);
  for (size_t i = 0; i < count; ++i) {
    auto sum = Widened(static_cast<const T*>(inputs[0])[i]);
    for (size_t r = 1; r < inputs.size(); ++r)
      sum = Combine(sum, Widened(static_cast<const T*>(inputs[r])[i]), reduction);
    using V = decltype(sum);
    if (reduction == Reduction::kAverage) sum = static_cast<V>(sum / static_cast<V>(inputs.size()));
    if constexpr (std::is_arithmetic_v<T>) {
      out[i] = sum;
    } else {
      out[i] = {T::Store(sum)};
    }
  }
}

}  // namespace

void ReduceInto(void* result, const std::vector<const void*>& inputs, size_t count, DataType type,
                Reduction reduction) {
  switch (type) {
    case DataType::kInt8: return Reduce<int8_t>(result, inputs, count, reduction);
    case DataType::kUint8: return Reduce<uint8_t>(result, inputs, count, reduction);
    case DataType::kInt32: return Reduce<int32_t>(result, inputs, count, reduction);
    case DataType::kUint32: return Reduce<uint32_t>(result, inputs, count, reduction);
    case DataType::kInt64: return Reduce<int64_t>(result, inputs, count, reduction);
    case DataType::kUint64: return Reduce<uint64_t>(result, inputs, count, reduction);
    case DataType::kFloat16: return Reduce<Half>(result, inputs, count, reduction);
    case DataType::kFloat32: return Reduce<float>(result, inputs, count, reduction);
    case DataType::kFloat64: return Reduce<double>(result, inputs, count, reduction);
    case DataType::kBfloat16: return Reduce<Brain>(result, inputs, count, reduction);
  }
}

}  // namespace engine::detail
