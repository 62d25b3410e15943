// Arithmetic on short runs of floats, which lie in the nearest cache: what a fused chain of pointwise operators is made of.
//
// torch's own kernels are reached through its dispatcher and its iterator only, which cost more (0.5 to 1 us) than what
// a request of few rows does with them (10 to 50 ns).
//
// Threads:   any.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// The loader takes the best of these for the processor.
#define ENGINE_SERVE_VECTORS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), noinline))
#else
#define ENGINE_SERVE_VECTORS __attribute__((noinline))
#endif
#define ENGINE_SERVE_INLINE inline __attribute__((always_inline))

namespace engine_torch::serve {

enum class Op : int32_t {
  kMove,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMax,
  kMin,
  kRelu,
  kSigmoid,
  kTanh,
  kExp,
  kSqrt,
  kRsqrt,
  kNeg,
  kAbs,
  kReciprocal,
  kNot,
  kAnd,
  kOr,
  kEqual,
  kNotEqual,
  kGreater,
  kGreaterEqual,
  kLess,
  kLessEqual,
  kWhere
};

// e to the power of x, within 2 units in the last place: 2 to the power of the nearest whole number of x / ln 2, times a
// polynomial of the rest.
ENGINE_SERVE_INLINE float Exp(float x) {
  constexpr float kMost = 88.72283F, kLeast = -87.33654F, kMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds
  const float y = x > kMost ? kMost : (x < kLeast ? kLeast : x);
  float rounded = y * 1.44269504F + kMagic;
  const auto power = (std::bit_cast<int32_t>(rounded) - std::bit_cast<int32_t>(kMagic));
  rounded -= kMagic;
  const float r = (y - rounded * 0.693359375F) + rounded * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  // In two factors, because 2^128 is no float.
  const int32_t half = power >> 1;
  const float made = p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((power - half + 127) << 23);
  return x > kMost ? std::numeric_limits<float>::infinity() : (x < kLeast ? 0.0F : made);
}
ENGINE_SERVE_INLINE float Sigmoid(float x) { return 1.0F / (1.0F + Exp(-x)); }
ENGINE_SERVE_INLINE float Tanh(float x) {
  const float tall = 1.0F - 2.0F / (Exp(2.0F * x) + 1.0F), square = x * x;
  const float low = x * (1.0F + square * (-1.0F / 3 + square * (2.0F / 15 + square * (-17.0F / 315))));
  return square < 0.01F ? low : tall;
}

#define ENGINE_SERVE_LOOP(NAME, EXPRESSION)                                                                  \
  ENGINE_SERVE_VECTORS static void NAME([[maybe_unused]] const float* a, [[maybe_unused]] const float* b,    \
                                        [[maybe_unused]] const float* c, float* __restrict out, int64_t n) { \
    for (int64_t i = 0; i < n; ++i) out[i] = (EXPRESSION);                                                   \
  }
ENGINE_SERVE_LOOP(DoMove, a[i])
ENGINE_SERVE_LOOP(DoAdd, a[i] + b[i])
ENGINE_SERVE_LOOP(DoSub, a[i] - b[i])
ENGINE_SERVE_LOOP(DoMul, a[i] * b[i])
ENGINE_SERVE_LOOP(DoDiv, a[i] / b[i])
ENGINE_SERVE_LOOP(DoMax, a[i] != a[i] ? a[i] : (b[i] > a[i] || b[i] != b[i] ? b[i] : a[i]))
ENGINE_SERVE_LOOP(DoMin, a[i] != a[i] ? a[i] : (b[i] < a[i] || b[i] != b[i] ? b[i] : a[i]))
ENGINE_SERVE_LOOP(DoRelu, a[i] < 0.0F ? 0.0F : a[i])
ENGINE_SERVE_LOOP(DoSigmoid, Sigmoid(a[i]))
ENGINE_SERVE_LOOP(DoTanh, Tanh(a[i]))
ENGINE_SERVE_LOOP(DoExp, Exp(a[i]))
ENGINE_SERVE_LOOP(DoSqrt, __builtin_sqrtf(a[i]))
ENGINE_SERVE_LOOP(DoRsqrt, 1.0F / __builtin_sqrtf(a[i]))
ENGINE_SERVE_LOOP(DoNeg, -a[i])
ENGINE_SERVE_LOOP(DoAbs, __builtin_fabsf(a[i]))
ENGINE_SERVE_LOOP(DoReciprocal, 1.0F / a[i])
ENGINE_SERVE_LOOP(DoNot, a[i] == 0.0F ? 1.0F : 0.0F)
ENGINE_SERVE_LOOP(DoAnd, a[i] != 0.0F && b[i] != 0.0F ? 1.0F : 0.0F)
ENGINE_SERVE_LOOP(DoOr, a[i] != 0.0F || b[i] != 0.0F ? 1.0F : 0.0F)
ENGINE_SERVE_LOOP(DoEqual, a[i] == b[i] ? 1.0F : 0.0F)
ENGINE_SERVE_LOOP(DoNotEqual, a[i] != b[i] ? 1.0F : 0.0F)
ENGINE_SERVE_LOOP(DoGreater, a[i] > b[i] ? 1.0F : 0.0F)
ENGINE_SERVE_LOOP(DoGreaterEqual, a[i] >= b[i] ? 1.0F : 0.0F)
ENGINE_SERVE_LOOP(DoLess, a[i] < b[i] ? 1.0F : 0.0F)
ENGINE_SERVE_LOOP(DoLessEqual, a[i] <= b[i] ? 1.0F : 0.0F)
ENGINE_SERVE_LOOP(DoWhere, a[i] != 0.0F ? b[i] : c[i])
#undef ENGINE_SERVE_LOOP

using Loop = void (*)(const float*, const float*, const float*, float*, int64_t);
inline constexpr Loop kLoops[] = {  // by Op
    DoMove, DoAdd,   DoSub,      DoMul,     DoDiv,          DoMax,  DoMin,        DoRelu, DoSigmoid,
    DoTanh, DoExp,   DoSqrt,     DoRsqrt,   DoNeg,          DoAbs,  DoReciprocal, DoNot,  DoAnd,
    DoOr,   DoEqual, DoNotEqual, DoGreater, DoGreaterEqual, DoLess, DoLessEqual,  DoWhere};

ENGINE_SERVE_VECTORS static float Sum(const float* from, int64_t n) {
  float parts[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int64_t j = 0; j < 16; ++j) parts[j] += from[i + j];
  float sum = 0;
  for (; i < n; ++i) sum += from[i];
  for (const float part : parts) sum += part;
  return sum;
}
ENGINE_SERVE_VECTORS static float SumOfSquares(const float* from, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += from[i] * from[i];
  return sum;
}
ENGINE_SERVE_VECTORS static float Most(const float* from, int64_t n) {
  float most = from[0];
  for (int64_t i = 1; i < n; ++i) most = from[i] > most || from[i] != from[i] ? from[i] : most;
  return most;
}
ENGINE_SERVE_VECTORS static void AddTo(const float* from, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}
ENGINE_SERVE_VECTORS static void Scale(float* to, float by, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] *= by;
}
ENGINE_SERVE_VECTORS static void ExpLess(const float* from, float less, float* __restrict to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = Exp(from[i] - less);
}
// out[i] = start + the sum of a[i * row + k] * b[k]: a product with one column.
ENGINE_SERVE_VECTORS static void Dots(const float* a, int64_t row, const float* b, float start, float* out,
                                      int64_t out_row, int64_t rows, int64_t n) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = a + i * row;
    float parts[16] = {};
    int64_t k = 0;
    for (; k + 16 <= n; k += 16)
      for (int64_t j = 0; j < 16; ++j) parts[j] += from[k + j] * b[k + j];
    float sum = start;
    for (; k < n; ++k) sum += from[k] * b[k];
    for (const float part : parts) sum += part;
    out[i * out_row] = sum;
  }
}

}  // namespace engine_torch::serve
