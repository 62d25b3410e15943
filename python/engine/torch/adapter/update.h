// Update: an optimizer's step of a table of embeddings, of those rows only that have a gradient, without the interpreter.
//
// Eager makes a gradient as large as the table, nearly all of it zeros, and reads and writes the whole table with it. SGD and
// Adagrad leave a row without a gradient as it is, to the bit: w + -rate * 0 is w, and so is w + (-rate * 0) / (sqrt(sum) + eps).
// So the rows of a batch are added up, in the order in which torch adds them, and the optimizer's arithmetic is done for these.
// SparseAdam does so itself, with some twenty calls from Python for each table; here it is one without any.
//
// Where the whole gradient is wanted, as by torch.compile, its rows are added up here, too: torch sets up an iteration for each.
//
// Threads:   any, one at a time for each table.
// Errors:    what torch throws.
#pragma once

#include <Python.h>

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
  enum Kind : int { kSgd, kAdagrad, kSparseAdam, kGradient };
  Kind kind = kSgd;
  int64_t padding = -1;  // a row that gets no gradient
  double eps = 0;        // of Adagrad; more than 0

  // Whether this processor has the instruction that torch's kernels multiply and add with.
  static bool Possible() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
  }

  // The stack holds the table, the gradient of what was looked up, the indices and minus the rate; then Adagrad's sum. For
  // SparseAdam it holds what engine_torch::sparse_adam takes, a sparse gradient among it; for a gradient what
  // aten::embedding_dense_backward takes, and then the gradient. Plain: as torch does it.
  void operator()(torch::jit::Stack& stack) const {
    const bool done = kind == kSparseAdam ? SparseAdam(stack) : kind == kGradient ? Gradient(stack) : Rows(stack);
    if (!done) Plain(stack);
  }

  // As eager does it, for all else.
  void Plain(torch::jit::Stack& stack) const {
    if (kind == kSparseAdam) {
      const PyGILState_STATE state = PyGILState_Ensure();
      try {
        Call("engine_torch::sparse_adam", "", stack);
      } catch (...) {
        PyGILState_Release(state);
        throw;
      }
      return PyGILState_Release(state);
    }
    if (kind == kGradient) return Call("aten::embedding_dense_backward", "", stack);
    const at::Tensor table = stack[0].toTensor();
    const c10::IValue rate = stack[3];
    torch::jit::Stack made{stack[1], stack[2], table.size(0), padding, false};
    Call("aten::embedding_dense_backward", "", made);
    const c10::IValue gradient = made.at(0);
    if (kind == kSgd) {
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

  static bool IsTable(const at::Tensor& t) {
    return t.defined() && t.layout() == at::kStrided && t.device().is_cpu() && t.scalar_type() == at::kFloat &&
           t.dim() == 2 && t.is_contiguous() && !t.is_neg() && !t._is_zerotensor() && !t.is_inference() &&
           !t.unsafeGetTensorImpl()->is_python_dispatch();
  }
  static bool IsTable(const c10::IValue& value, const at::Tensor& like) {
    return IsTable(value.toTensor()) && value.toTensor().sizes() == like.sizes();
  }
  static bool AreIndices(const at::Tensor& t) {
    return t.layout() == at::kStrided && t.device().is_cpu() &&
           (t.scalar_type() == at::kLong || t.scalar_type() == at::kInt) &&
           !t.unsafeGetTensorImpl()->is_python_dispatch();
  }
  static bool AreRows(const at::Tensor& t, const at::Tensor& table) {
    return t.layout() == at::kStrided && t.device().is_cpu() && t.scalar_type() == at::kFloat && t.dim() > 0 &&
           t.size(-1) == table.size(1) && table.size(1) > 0 && !t.is_neg() && !t._is_zerotensor() &&
           !t.unsafeGetTensorImpl()->is_python_dispatch();
  }
  // Otherwise a row without a gradient changes: by a rate that is no number, or if numbers close to zero become zero.
  static bool Rate(double rate) {
    const auto used = static_cast<float>(rate);
    return std::isfinite(used) && std::signbit(used) && Denormals() == 0;
  }

  static Found& Scratch() {
    thread_local Found found;
    return found;
  }
  static float* Data(const at::Tensor& changed) {
    changed.unsafeGetTensorImpl()->bump_version();  // as an operator that changes it does
    return changed.mutable_data_ptr<float>();
  }

  // False: nothing was done, because it is a case for torch.
  bool Rows(torch::jit::Stack& stack) const {
    const at::Tensor &table = stack.at(0).toTensor(), &given = stack[1].toTensor();
    const double rate = stack.at(3).toScalar().toDouble();
    if (!IsTable(table) || !AreIndices(stack[2].toTensor()) || !AreRows(given, table) || !Rate(rate)) return false;
    if (kind == kAdagrad && !IsTable(stack.at(4), table)) return false;
    const int64_t columns = table.size(1);
    Found& found = Scratch();
    AddUp(stack[2].toTensor(), given, table, 0.0F, found);  // torch adds to zeros, and 0 + -0 is 0
    if (kind == kSgd) return Sgd(Data(table), found, columns, static_cast<float>(rate)), true;
    const at::Tensor roots = at::detail::empty_cpu({static_cast<int64_t>(found.rows.size()) * columns}, at::kFloat);
    Squares(Data(stack[4].toTensor()), found, columns, roots.mutable_data_ptr<float>());
    Root(roots);
    Adagrad(Data(table), roots.const_data_ptr<float>(), found, columns, static_cast<float>(rate),
            static_cast<float>(eps));
    return true;
  }

  bool SparseAdam(torch::jit::Stack& stack) const {
    const at::Tensor &table = stack.at(0).toTensor(), &given = stack.at(1).toTensor();
    if (!IsTable(table) || !IsTable(stack.at(2), table) || !IsTable(stack.at(3), table) || !given.is_sparse() ||
        given.sparse_dim() != 1 || given.sizes() != table.sizes())
      return false;
    torch::jit::Stack made{given};
    Call("aten::coalesce", "", made);  // by torch, because the order in which it adds is its sort's
    const at::Tensor gradient = made.at(0).toTensor(), indices = gradient._indices(), values = gradient._values();
    if (!AreIndices(indices) || !AreRows(values, table)) return false;
    const double step = stack.at(4).toDouble(), rate = stack.at(5).toDouble();
    const auto betas = stack.at(6).toDoubleVector();
    const int64_t columns = table.size(1);
    Found& found = Scratch();
    AddUp(indices, values, table, -0.0F, found);  // torch copies the first, and -0 + x is x
    if (found.rows.empty()) return true;
    const at::Tensor numbers =
        at::detail::empty_cpu({2, static_cast<int64_t>(found.rows.size()) * columns}, at::kFloat);
    auto *above = numbers.mutable_data_ptr<float>(), *below = above + numbers.size(1);
    Moments(Data(stack[2].toTensor()), Data(stack[3].toTensor()), found, columns, static_cast<float>(1 - betas.at(0)),
            static_cast<float>(1 - betas.at(1)), above, below);
    Root(numbers.select(0, 1));
    const double size = rate * std::sqrt(1 - std::pow(betas[1], step)) / (1 - std::pow(betas[0], step));
    Adam(Data(table), found, columns, above, below, static_cast<float>(-size),
         static_cast<float>(stack.at(7).toDouble()));
    return true;
  }

  bool Gradient(torch::jit::Stack& stack) const {
    const at::Tensor &given = stack.at(0).toTensor(), &indices = stack.at(1).toTensor();
    const int64_t size = stack.at(2).toInt();
    if (!AreIndices(indices) || !given.defined() || given.dim() == 0 || stack.at(4).toBool()) return false;
    const at::Tensor made = at::detail::empty_cpu({size, given.size(-1)}, at::kFloat);
    if (!AreRows(given, made) || given.numel() != indices.numel() * made.size(1)) return false;
    torch::jit::Stack zeros{made};
    Call("aten::zero_", "", zeros);  // by as many threads as torch takes
    const at::Tensor own = indices.contiguous(), rows = given.contiguous();
    const auto add = [&](const auto* each) {
      AddEach(each, own.numel(), rows.const_data_ptr<float>(), made.sizes(), stack[3].toInt(),
              made.mutable_data_ptr<float>());
    };
    own.scalar_type() == at::kLong ? add(own.const_data_ptr<int64_t>()) : add(own.const_data_ptr<int32_t>());
    stack.clear();
    stack.emplace_back(made);
    return true;
  }
  template <class Index>
  ENGINE_TORCH_FMA static void AddEach(const Index* indices, int64_t count, const float* rows, at::IntArrayRef sizes,
                                       int64_t padding, float* into) {
    const int64_t size = sizes[0], columns = sizes[1];
    for (int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<int64_t>(indices[i]);
      if (index == padding || index < 0 || index >= size) continue;  // torch leaves these out, too
      float* const row = into + index * columns;
      for (int64_t j = 0; j < columns; ++j) row[j] += rows[i * columns + j];
    }
  }

  // torch's square root, which is not the processor's.
  static void Root(const at::Tensor& of) {
    torch::jit::Stack made{of};
    Call("aten::sqrt_", "", made);
  }

  void AddUp(const at::Tensor& indices, const at::Tensor& gradient, const at::Tensor& table, float zero,
             Found& found) const {
    const at::Tensor own = indices.contiguous();
    const bool by_row = gradient.dim() == 2 && gradient.stride(1) == 1;
    const at::Tensor rows = by_row ? gradient : gradient.contiguous().view({-1, table.size(1)});
    const auto add = [&](const auto* each) {
      AddUp(each, own.numel(), rows.const_data_ptr<float>(), rows.stride(0), table.sizes(), padding, zero, found);
    };
    own.scalar_type() == at::kLong ? add(own.const_data_ptr<int64_t>()) : add(own.const_data_ptr<int32_t>());
  }
  template <class Index>
  ENGINE_TORCH_FMA static void AddUp(const Index* indices, int64_t count, const float* rows, int64_t row,
                                     at::IntArrayRef sizes, int64_t padding, float zero, Found& found) {
    const int64_t size = sizes[0], columns = sizes[1];
    const uint64_t mask = std::bit_ceil(static_cast<uint64_t>(count) * 2 + 1) - 1;
    found.rows.clear();
    found.places.assign(mask + 1, 0);
    found.sums.resize(static_cast<size_t>(count * columns));
    for (int64_t i = 0; i < count; ++i) {
      const auto index = static_cast<int64_t>(indices[i]);
      if (index == padding || index < 0 || index >= size) continue;  // torch leaves these out, too
      uint64_t place = static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15u >> 32 & mask;
      while (found.places[place] != 0 && found.rows[found.places[place] - 1] != index) place = (place + 1) & mask;
      const float* from = rows + i * row;
      const bool first = found.places[place] == 0;
      if (first) found.rows.push_back(index), found.places[place] = static_cast<uint32_t>(found.rows.size());
      float* sum = found.sums.data() + (found.places[place] - 1) * columns;
      for (int64_t j = 0; j < columns; ++j) sum[j] = (first ? zero : sum[j]) + from[j];
    }
  }
  ENGINE_TORCH_FMA static void Sgd(float* table, const Found& found, int64_t columns, float rate) {
    for (size_t i = 0; i < found.rows.size(); ++i) {
      float* row = table + found.rows[i] * columns;
      const float* sum = found.sums.data() + static_cast<int64_t>(i) * columns;
      for (int64_t j = 0; j < columns; ++j) row[j] = __builtin_fmaf(sum[j], rate, row[j]);
    }
  }
  // The sums of squares of the rows, also as numbers that lie together.
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

  ENGINE_TORCH_FMA static void Moments(float* firsts, float* seconds, const Found& found, int64_t columns, float part1,
                                       float part2, float* above, float* below) {
    for (size_t i = 0; i < found.rows.size(); ++i) {
      float *first = firsts + found.rows[i] * columns, *second = seconds + found.rows[i] * columns;
      const int64_t from = static_cast<int64_t>(i) * columns;
      for (int64_t j = 0; j < columns; ++j) {
        const float sum = found.sums[from + j], old1 = first[j], old2 = second[j];
        const float more1 = (sum - old1) * part1, more2 = (sum * sum - old2) * part2;
        first[j] = old1 + more1, second[j] = old2 + more2;
        above[from + j] = more1 + old1, below[from + j] = more2 + old2;
      }
    }
  }
  ENGINE_TORCH_FMA static void Adam(float* table, const Found& found, int64_t columns, const float* above,
                                    const float* below, float size, float eps) {
    for (size_t i = 0; i < found.rows.size(); ++i) {
      float* row = table + found.rows[i] * columns;
      const int64_t from = static_cast<int64_t>(i) * columns;
      for (int64_t j = 0; j < columns; ++j) row[j] += size * (above[from + j] / (below[from + j] + eps));
    }
  }

  static void Call(const char* name, const char* overload, torch::jit::Stack& stack) {
    c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).callBoxed(stack);
  }
};

#undef ENGINE_TORCH_FMA

}  // namespace engine_torch
