// Kept: a copy of a matrix that changes seldom, in rows, as brgemm reads it.
//
// Threads:   any.
// Ownership: the matrix's memory stays while its copy does, so its address is no other matrix's.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>

namespace engine_torch {

class Kept {
 public:
  // The copy, made again where torch says that the matrix has changed; the matrix itself if it changes all the time, or if
  // torch does not count its changes.
  at::Tensor Of(const at::Tensor& matrix) {
    if (matrix.is_inference()) return matrix;
    const std::lock_guard lock(mutex_);
    if (copies_ > kMost) return matrix;
    const auto version = matrix._version();
    if (!copy_.defined() || matrix_.const_data_ptr() != matrix.const_data_ptr() || version_ != version) {
      if (++copies_ > kMost) return matrix_ = copy_ = at::Tensor(), matrix;
      matrix_ = matrix, copy_ = matrix.contiguous(), version_ = version;
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
