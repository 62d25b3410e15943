// Kept: a copy of a matrix that changes seldom, in rows, as brgemm reads it.
//
// Threads:   any.
// Ownership: the matrix's memory stays while its copy does, so its address is no other matrix's.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <utility>

namespace engine_torch {

class Kept {
 public:
  // The copy, made again where torch says that the matrix has changed; the matrix itself if it changes all the time, or if
  // torch does not count its changes.
  at::Tensor Of(const at::Tensor& matrix) {
    if (matrix.is_inference()) return matrix;
    at::Tensor old_matrix, old_copy;  // they die behind the lock, because a tensor's end may run Python code
    const std::lock_guard lock(mutex_);
    if (copies_ > kMost) return matrix;
    const auto version = matrix._version();
    if (!copy_.defined() || matrix_.const_data_ptr() != matrix.const_data_ptr() || version_ != version) {
      const bool often = ++copies_ > kMost;
      at::Tensor copy = often ? at::Tensor() : matrix.contiguous();
      old_matrix = std::exchange(matrix_, often ? at::Tensor() : matrix);
      old_copy = std::exchange(copy_, std::move(copy));
      version_ = version;
      if (often) return matrix;
    }
    return copy_;
  }

 private:
  static constexpr int kMost = 100;  // copies: more say that the matrix changes all the time
  std::mutex mutex_;
  // Guarded by mutex_.
  at::Tensor matrix_, copy_;
  int64_t version_ = 0;
  int copies_ = 0;
};

}  // namespace engine_torch
