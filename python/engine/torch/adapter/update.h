// Update: an optimizer's step of a table of embeddings, of those rows only that have a gradient.
//
// Eager makes a gradient as large as the table, nearly all of it zeros, and reads and writes the whole table with it. SGD and
// Adagrad leave a row without a gradient as it is, to the bit: w + -rate * 0 is w, and so is w + (-rate * 0) / (sqrt(sum) + eps).
// So the rows of a batch are added up, in the order in which torch adds them, and the optimizer's arithmetic is done for these.
//
// Threads:   any, one at a time for each table.
// Errors:    what torch throws.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <bit>
#include <cmath>
#include <vector>

#include "threads.h"

namespace engine_torch {

#if defined(__x86_64__)
#define ENGINE_TORCH_FMA __attribute__((target("avx2,fma")))
#else
#define ENGINE_TORCH_FMA
#endif

class Update {
 public:
  int64_t padding = -1;  // a row that gets no gradient
  bool adagrad = false;  // else SGD
  double eps = 0;        // of Adagrad; more than 0

  // Whether this processor has the instruction that torch's kernels multiply and add with.
  static bool Possible() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
  }

  // The stack holds the table, the gradient of what was looked up, the indices and minus the rate; then Adagrad's sum.
  void operator()(torch::jit::Stack& stack) const {
    const at::Tensor& table = stack.at(0).toTensor();
    const double rate = stack.at(3).toScalar().toDouble();
    if (!Plain(table) || !Indices(stack[2]) || !Gradient(stack[1], table) || !Same(stack, table) || !Rate(rate))
      return Dense(stack);
    const at::Tensor gradient = Rows(stack[1].toTensor(), table.size(1)), indices = stack[2].toTensor().contiguous();
    at::Tensor total;
    if (adagrad) total = stack[4].toTensor();
    thread_local Found found;
    const float* rows = gradient.const_data_ptr<float>();
    const int64_t row = gradient.stride(0);
    if (indices.scalar_type() == at::kLong)
      AddUp(indices.const_data_ptr<int64_t>(), indices.numel(), rows, row, table, found);
    else
      AddUp(indices.const_data_ptr<int32_t>(), indices.numel(), rows, row, table, found);
    Apply(table, total, found, static_cast<float>(rate));
    table.unsafeGetTensorImpl()->bump_version();  // as an operator that changes it does
    if (adagrad) total.unsafeGetTensorImpl()->bump_version();
  }

  // As eager does it, for all else.
  void Dense(torch::jit::Stack& stack) const {
    const at::Tensor table = stack[0].toTensor();
    const c10::IValue rate = stack[3];
    torch::jit::Stack made{stack[1], stack[2], table.size(0), padding, false};
    Call("aten::embedding_dense_backward", "", made);
    const c10::IValue gradient = made.at(0);
    if (!adagrad) {
      made = {table, gradient, rate};
      return Call("aten::add_", "Tensor", made);
    }
    made = {stack.at(4), gradient, gradient, 1};
    Call("aten::addcmul_", "", made);
    made = {stack[4]};
    Call("aten::sqrt", "", made);
    made.insert(made.end(), {c10::IValue(eps), c10::IValue(1)});
    Call("aten::add_", "Scalar", made);
    made = {table, gradient, made.at(0), rate};
    Call("aten::addcdiv_", "", made);
  }

 private:
  struct Found {
    std::vector<int64_t> rows;     // of the table, by when they come first
    std::vector<float> sums;       // by these
    std::vector<uint32_t> places;  // a table of hashes: 1 + the number in `rows`; 0: none
  };

  static bool Plain(const at::Tensor& t) {
    return t.defined() && t.layout() == at::kStrided && t.device().is_cpu() && t.scalar_type() == at::kFloat &&
           t.dim() == 2 && t.is_contiguous() && !t.is_neg() && !t._is_zerotensor() && !t.is_inference() &&
           !t.unsafeGetTensorImpl()->is_python_dispatch();
  }
  static bool Indices(const c10::IValue& value) {
    const at::Tensor& t = value.toTensor();
    return t.layout() == at::kStrided && t.device().is_cpu() &&
           (t.scalar_type() == at::kLong || t.scalar_type() == at::kInt) &&
           !t.unsafeGetTensorImpl()->is_python_dispatch();
  }
  static bool Gradient(const c10::IValue& value, const at::Tensor& table) {
    const at::Tensor& t = value.toTensor();
    return t.layout() == at::kStrided && t.device().is_cpu() && t.scalar_type() == at::kFloat && t.dim() > 0 &&
           t.size(-1) == table.size(1) && table.size(1) > 0 && !t.is_neg() && !t._is_zerotensor() &&
           !t.unsafeGetTensorImpl()->is_python_dispatch();
  }
  bool Same(const torch::jit::Stack& stack, const at::Tensor& table) const {
    return !adagrad || (Plain(stack.at(4).toTensor()) && stack[4].toTensor().sizes() == table.sizes());
  }
  // Otherwise a row without a gradient changes: by a rate that is no number, or if numbers close to zero become zero.
  static bool Rate(double rate) {
    const auto used = static_cast<float>(rate);
    return std::isfinite(used) && std::signbit(used) && Denormals() == 0;
  }
  static at::Tensor Rows(const at::Tensor& gradient, int64_t columns) {
    if (gradient.dim() == 2 && gradient.stride(1) == 1) return gradient;
    return gradient.contiguous().view({-1, columns});
  }

  template <class Index>
  ENGINE_TORCH_FMA static void AddUp(const Index* indices, int64_t count, const float* rows, int64_t row,
                                     const at::Tensor& table, const Update& of, Found& found) {
    const int64_t size = table.size(0), columns = table.size(1);
    const uint64_t mask = std::bit_ceil(static_cast<uint64_t>(count) * 2 + 1) - 1;
    found.rows.clear();
    found.places.assign(mask + 1, 0);
    found.sums.resize(static_cast<size_t>(count * columns));
    for (int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<int64_t>(indices[i]);
      if (index == of.padding || index < 0 || index >= size) continue;  // torch leaves these out, too
      uint64_t place = static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15u >> 32 & mask;
      while (found.places[place] != 0 && found.rows[found.places[place] - 1] != index) place = (place + 1) & mask;
      const float* from = rows + i * row;
      const bool first = found.places[place] == 0;
      if (first) found.rows.push_back(index), found.places[place] = static_cast<uint32_t>(found.rows.size());
      float* sum = found.sums.data() + (found.places[place] - 1) * columns;
      for (int64_t j = 0; j < columns; ++j) sum[j] = (first ? 0.0F : sum[j]) + from[j];  // 0 + -0 is 0
    }
  }
  template <class Index>
  void AddUp(const Index* indices, int64_t count, const float* rows, int64_t row, const at::Tensor& table,
             Found& found) const {
    AddUp(indices, count, rows, row, table, *this, found);
  }

  void Apply(const at::Tensor& table, const at::Tensor& total, const Found& found, float rate) const {
    float* to = table.mutable_data_ptr<float>();
    const int64_t columns = table.size(1);
    if (!adagrad) return Sgd(to, found, columns, rate);
    const at::Tensor roots = at::detail::empty_cpu({static_cast<int64_t>(found.rows.size()) * columns}, at::kFloat);
    Squares(total.mutable_data_ptr<float>(), found, columns, roots.mutable_data_ptr<float>());
    torch::jit::Stack made{roots};
    Call("aten::sqrt_", "", made);
    Adagrad(to, roots.const_data_ptr<float>(), found, columns, rate, static_cast<float>(eps));
  }
  ENGINE_TORCH_FMA static void Sgd(float* table, const Found& found, int64_t columns, float rate) {
    for (size_t i = 0; i < found.rows.size(); ++i) {
      float* row = table + found.rows[i] * columns;
      const float* sum = found.sums.data() + static_cast<int64_t>(i) * columns;
      for (int64_t j = 0; j < columns; ++j) row[j] = __builtin_fmaf(sum[j], rate, row[j]);
    }
  }
  // The sums of squares of the rows; where they lie together, too, because torch's square root is not the processor's.
  ENGINE_TORCH_FMA static void Squares(float* totals, const Found& found, int64_t columns, float* together) {
    for (size_t i = 0; i < found.rows.size(); ++i) {
      float* total = totals + found.rows[i] * columns;
      const int64_t from = static_cast<int64_t>(i) * columns;
      for (int64_t j = 0; j < columns; ++j)
        together[from + j] = total[j] = __builtin_fmaf(found.sums[from + j], found.sums[from + j], total[j]);
    }
  }
  ENGINE_TORCH_FMA static void Adagrad(float* table, const float* roots, const Found& found, int64_t columns,
                                       float rate, float eps) {
    for (size_t i = 0; i < found.rows.size(); ++i) {
      float* row = table + found.rows[i] * columns;
      const int64_t from = static_cast<int64_t>(i) * columns;
      for (int64_t j = 0; j < columns; ++j) row[j] += rate * found.sums[from + j] / (roots[from + j] + eps);
    }
  }

  static void Call(const char* name, const char* overload, torch::jit::Stack& stack) {
    c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).callBoxed(stack);
  }
};

#undef ENGINE_TORCH_FMA

}  // namespace engine_torch
