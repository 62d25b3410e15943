// Brgemm: products of small and middle-sized float32 matrices by oneDNN's brgemm, the kernel that its products are made of.
//
// MKL makes such products with half the vectors that some processors have, and a whole call of oneDNN costs as much as a
// product of 64 x 128 x 128; its kernel alone costs 0.1 us. torch offers it for its own attention. It reads rows, so
// matrices that lie in columns are turned before, by FBGEMM, which torch has, too.
//
// A sum of `depth` products is made in registers; the next `depth` ones are then added to it. With the depth at which
// another library's loop is cut, results are equal to that library's to the bit (products.py finds it).
//
// Threads:   any; where a product is large enough, as many of OpenMP's threads are used as the calling thread asks for. If it asks
//            for one, inside of a node of the engine, threads of the run that are idle take a share. Each makes columns or
//            rows of its own, so their number changes no result.
// Errors:    what torch and oneDNN throw.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "threads.h"

extern "C" {
int omp_get_max_threads(void);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
// Of every OpenMP library that torch is built with. Calls the function on a team's threads, and waits.
void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned) __attribute__((weak));
}

// Without the packages' headers: a build of torch that has other functions lacks these symbols, and the adapter still loads.
namespace at::native::cpublas {
// Of ATen/native/CPUBlas.h. c = a @ b, or c += a @ b if `adds`. The processor's own kernel is made on a thread's first call
// for such sizes, and kept. For processors without AVX2 it calls MKL.
__attribute__((weak)) void brgemm(int64_t rows, int64_t others, int64_t columns, int64_t a_row, int64_t b_row,
                                  int64_t c_row, bool adds, const float* a, const float* b, float* c, bool packed);
}  // namespace at::native::cpublas
namespace fbgemm {
// Of fbgemm/Utils.h. to = from transposed.
template <class T>
void transpose_simd(int64_t rows, int64_t columns, const T* from, int64_t from_row, T* to, int64_t to_row);
template <>
__attribute__((weak)) void transpose_simd<float>(int64_t, int64_t, const float*, int64_t, float*, int64_t);
}  // namespace fbgemm

namespace engine_torch {

class Brgemm {
 public:
  static bool Possible() { return at::native::cpublas::brgemm != nullptr; }

  // c = row + a @ b. c is contiguous; `row`, which may be null, is added to each row of the product. `in_pieces`: by the calling thread
  // alone, in the pieces that threads of a run would share.
  static void Multiply(const at::Tensor& a, const at::Tensor& b, const float* row, const at::Tensor& c, int64_t depth,
                       bool in_pieces = false) {
    Run run{Read(a), Read(b), row, c.mutable_data_ptr<float>(), a.size(0), a.size(1), b.size(1), depth};
    const int64_t count = run.blocks();
    const int64_t work = run.rows * run.columns * run.others;
    if (in_pieces) {
      for (int64_t i = 0; i < count; i += kPiece) Blocks(run, i, std::min(i + kPiece, count));
    } else if (const int team = work >= kWorkOfTeam && GOMP_parallel ? omp_get_max_threads() : 1; team > 1) {
      GOMP_parallel([](void* of) { Share(*static_cast<Run*>(of)); }, &run, static_cast<unsigned>(team), 0);
    } else if (work >= kWorkToShare && node_context) {
      const auto piece = [](void* of, size_t begin, size_t end) {
        Run& shared = *static_cast<Run*>(of);
        try {
          EnterNode(shared.denormals);
        } catch (...) {
          return shared.Fail();
        }
        Blocks(shared, static_cast<int64_t>(begin), static_cast<int64_t>(end));
      };
      parallel_for(node_context, static_cast<size_t>(count), kPiece, piece, &run);
    } else {
      Blocks(run, 0, count);
    }
    if (run.error) std::rethrow_exception(run.error);
  }

 private:
  static constexpr int64_t kWorkOfTeam = 1 << 19;   // multiplications: less is done before a team has begun
  static constexpr int64_t kWorkToShare = 1 << 22;  // and before a thread of the run has come, which may sleep
  static constexpr int64_t kAtOnce = 128;           // columns of b that are turned at once, to stay in the cache
  static constexpr int64_t kLeast = 16;  // rows or columns of a block: for one alone oneDNN adds up in another order
  static constexpr int64_t kPiece = 4;   // blocks that a thread takes at once, as few as take longer than to share them

  struct Matrix {
    at::Tensor of;
    const float* data;
    int64_t row, column;  // strides, of which one is 1
  };
  struct Run {
    Matrix a, b;
    const float* row;
    float* c;
    int64_t rows, columns, others, depth;
    unsigned denormals = Denormals();
    std::atomic_flag failed{};
    std::exception_ptr error{};  // written by the thread that has set `failed`

    bool by_rows() const { return rows >= others; }
    void Fail() {
      if (!failed.test_and_set()) error = std::current_exception();
    }
    int64_t blocks() const {
      return std::max<int64_t>(1, (by_rows() ? rows : others) / kLeast);
    }  // the last one is larger
  };

  static Matrix Read(const at::Tensor& of) {
    const int64_t rows = of.size(0), columns = of.size(1), row = of.stride(0), column = of.stride(1);
    const auto* data = of.const_data_ptr<float>();
    if ((columns == 1 || column == 1) && (rows == 1 || row >= columns)) return {of, data, std::max(row, columns), 1};
    if (row == 1 && column >= rows && fbgemm::transpose_simd<float>) return {of, data, 1, column};
    const at::Tensor copy = of.contiguous();
    return {copy, copy.const_data_ptr<float>(), columns, 1};
  }

  // What one thread of OpenMP's team makes.
  static void Share(Run& run) {
    const int64_t team = std::min<int64_t>(omp_get_num_threads(), run.blocks()), number = omp_get_thread_num();
    if (number < team) Blocks(run, run.blocks() * number / team, run.blocks() * (number + 1) / team);
  }

  static void Blocks(Run& run, int64_t begin, int64_t end) noexcept {
    const bool by_rows = run.by_rows(), last = end == run.blocks();
    const int64_t first = begin * kLeast, behind = last ? (by_rows ? run.rows : run.others) : end * kLeast;
    try {
      by_rows ? Part(run, first, behind, 0, run.others) : Part(run, 0, run.rows, first, behind);
    } catch (...) {  // none may leave a team
      run.Fail();
    }
  }

  static void Part(const Run& run, int64_t row, int64_t row_end, int64_t other, int64_t other_end) {
    const int64_t rows = row_end - row;
    if (run.row)
      for (int64_t i = row; i < row_end; ++i)
        std::copy(run.row + other, run.row + other_end, run.c + i * run.others + other);
    at::Tensor a_turned, b_turned;
    for (int64_t k = 0; k < run.columns; k += run.depth) {
      const int64_t depth = std::min(run.depth, run.columns - k);
      const auto [a, a_row] = Rows(run.a, row, k, rows, depth, a_turned);
      for (int64_t n = other, end; n < other_end; n = end) {
        end = other_end - n < kAtOnce + kLeast ? other_end : n + kAtOnce;
        const auto [b, b_row] = Rows(run.b, k, n, depth, end - n, b_turned);
        at::native::cpublas::brgemm(rows, end - n, depth, a_row, b_row, run.others, k > 0 || run.row, a, b,
                                    run.c + row * run.others + n, false);
      }
    }
  }

  // Part of a matrix in rows, and how far from each other they are. It lies where the matrix does or in `turned`, which grows.
  static std::pair<const float*, int64_t> Rows(const Matrix& of, int64_t row, int64_t column, int64_t rows,
                                               int64_t columns, at::Tensor& turned) {
    const float* from = of.data + row * of.row + column * of.column;
    if (of.column == 1) return {from, of.row};
    if (!turned.defined() || turned.numel() < rows * columns)
      turned = at::detail::empty_cpu({rows * columns}, at::kFloat);
    auto* to = turned.mutable_data_ptr<float>();
    fbgemm::transpose_simd<float>(columns, rows, from, of.column, to, columns);
    return {to, columns};
  }
};

}  // namespace engine_torch
