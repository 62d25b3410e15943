// Product: a product of two matrices by oneDNN's matmul, or by its brgemm (brgemm.h), instead of torch's own choice of a
// library.
//
// products.py finds out, for each form of matrices, which of the three is fastest here and whether their results are equal.
//
// Threads:   any; as many of OpenMP's threads are used as the calling thread asks for.
// Errors:    what torch throws.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <memory>

#include "brgemm.h"
#include "kept.h"

namespace at::native {
// Of ATen/native/mkldnn/Matmul.h, which no package of torch has. out = beta * out + alpha * a @ b. A build without
// oneDNN, or with another name for it, lacks the symbol.
__attribute__((weak)) void mkldnn_matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, float beta,
                                         float alpha);
}  // namespace at::native

namespace engine_torch {

constexpr uintptr_t kProductAlignment = 64;  // of torch's allocations; MKL may add up in another order for others

struct Product {
  bool adds = false;                 // addmm: the first argument is added to each row
  std::array<int64_t, 3> sizes{};    // of a: rows, columns; of b: columns
  std::array<int64_t, 4> strides{};  // of a, of b
  int64_t depth = 0;                 // of a sum that brgemm makes; 0: matmul makes the product

  std::shared_ptr<Kept> kept;  // of b; null: b is read as it lies

  bool Possible() const { return depth > 0 ? Brgemm::Possible() : at::native::mkldnn_matmul != nullptr; }

  bool Fits(const c10::IValue* args) const {
    const auto [rows, columns, others] = sizes;
    const c10::IValue* matrices = args + (adds ? 1 : 0);
    return (!adds || IsRow(args[0], others)) && Is(matrices[0], rows, columns, &strides[0]) &&
           Is(matrices[1], columns, others, &strides[2]);
  }

  at::Tensor operator()(const c10::IValue* args, bool in_pieces = false) const {
    const c10::IValue* matrices = args + (adds ? 1 : 0);
    const at::Tensor& a = matrices[0].toTensor();
    const at::Tensor b = kept ? kept->Of(matrices[1].toTensor()) : matrices[1].toTensor();
    at::Tensor out = at::detail::empty_cpu({sizes[0], sizes[2]}, at::kFloat);
    if (depth > 0) {
      const float* row = adds ? args[0].toTensor().const_data_ptr<float>() : nullptr;
      Brgemm::Multiply(a, b, row, out, std::min(depth, sizes[1]), in_pieces);
      return out;
    }
    if (adds) out.copy_(args[0].toTensor());
    at::native::mkldnn_matmul(a, b, out, adds ? 1.0F : 0.0F, 1.0F);
    return out;
  }

 private:
  static bool IsPlain(const c10::IValue& value) {
    if (!value.isTensor()) return false;
    const at::Tensor& t = value.toTensor();
    if (!t.defined() || t.layout() != at::kStrided || !t.device().is_cpu() || t.scalar_type() != at::kFloat)
      return false;
    // What only torch's dispatcher knows how to read: numbers that are negated late, zeros without memory, subclasses.
    return !t.is_neg() && !t._is_zerotensor() && !t.unsafeGetTensorImpl()->is_python_dispatch();
  }
  static bool Is(const c10::IValue& value, int64_t rows, int64_t columns, const int64_t* by) {
    if (!IsPlain(value)) return false;
    const at::Tensor& t = value.toTensor();
    return t.dim() == 2 && t.size(0) == rows && t.size(1) == columns && t.stride(0) == by[0] && t.stride(1) == by[1] &&
           reinterpret_cast<uintptr_t>(t.const_data_ptr()) % kProductAlignment == 0;
  }
  static bool IsRow(const c10::IValue& value, int64_t size) {
    if (!IsPlain(value)) return false;
    const at::Tensor& t = value.toTensor();
    return t.dim() == 1 && t.size(0) == size && t.is_contiguous();
  }
};

}  // namespace engine_torch
