// Tiles: products of small and middle-sized float32 matrices.
//
// MKL makes such products with half the vectors that some processors have, and a call of oneDNN costs as much as a product
// of 64 x 128 x 128. This is a plain loop over tiles that fit into the registers. Matrices are read as they lie, by
// strides; only columns of b that are not next to each other in memory are copied before.
//
// A sum of `depth` products is made in registers; the next `depth` ones are then added to it. With the depth at which a
// library's own loop is cut, results are equal to the library's to the bit (products.py finds it).
//
// Threads:   any; as many of OpenMP's threads are used as the calling thread asks for, where a product is large enough.
//            Each makes columns or rows of its own, so their number changes no result.
// Errors:    what torch's allocator throws, before anything is written.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <utility>

extern "C" {
int omp_get_max_threads(void);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
// Of every OpenMP library that torch is built with. Calls the function on a team's threads, and waits.
void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned) __attribute__((weak));
}

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace engine_torch {

struct TileArgs {
  const float *a, *b;
  float* c;
  const float* from;  // null: zeros
  int64_t a_row, a_column, b_row, c_row, from_row, depth;
};

// c = row + a @ b. c is contiguous; `row`, which may be null, is added to each row of the product.
struct Matrices {
  const float *a, *b, *row;
  float* c;
  std::array<int64_t, 3> sizes;    // of a: rows, columns; of b: columns
  std::array<int64_t, 4> strides;  // of a, of b
  int64_t depth;
};

#if defined(__x86_64__)

#define TILE_NAME Tile512
#define TILE_TARGET "avx512f,avx512vl,avx512bw,avx512dq,fma"
#define TILE_FLOATS 16
#define TILE_ROWS 12
#include "tile.h"

#define TILE_NAME Tile256
#define TILE_TARGET "avx2,fma"
#define TILE_FLOATS 8
#define TILE_ROWS 6
#include "tile.h"

// to = from transposed, 8 x 8.
__attribute__((target("avx"))) inline void Transpose(const float* from, int64_t from_row, float* to, int64_t to_row) {
  __m256 r[8], s[8];
  for (int i = 0; i < 4; ++i) {  // the left halves of rows i and i + 4, and the right ones
    const float *above = from + i * from_row, *below = from + (i + 4) * from_row;
    r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(above)), _mm_loadu_ps(below), 1);
    r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(above + 4)), _mm_loadu_ps(below + 4), 1);
  }
  for (int i = 0; i < 8; i += 4) {
    s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]), s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    s[i + 2] = _mm256_unpacklo_ps(r[i + 2], r[i + 3]), s[i + 3] = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
    _mm256_storeu_ps(to + i * to_row, _mm256_shuffle_ps(s[i], s[i + 2], 0x44));
    _mm256_storeu_ps(to + (i + 1) * to_row, _mm256_shuffle_ps(s[i], s[i + 2], 0xee));
    _mm256_storeu_ps(to + (i + 2) * to_row, _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44));
    _mm256_storeu_ps(to + (i + 3) * to_row, _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee));
  }
}

template <class Tile>
class Tiles {
 public:
  static void Multiply(const Matrices& of) {
    const auto [rows, columns, others] = of.sizes;
    const bool wide = rows * columns * others >= kWorkOfTeam && GOMP_parallel;
    Run run{of, Panels(others), wide ? omp_get_max_threads() : 1, {}};
    const at::Tensor buffer =
        at::detail::empty_cpu({run.threads * of.depth * std::min(kChunk, run.panels * kWidth)}, at::kFloat);
    run.buffer = buffer.mutable_data_ptr<float>();
    if (run.threads > 1)
      GOMP_parallel(
          [](void* given) { Share(*static_cast<const Run*>(given), omp_get_thread_num(), omp_get_num_threads()); },
          &run, static_cast<unsigned>(run.threads), 0);
    else
      Share(run, 0, 1);
  }

 private:
  static constexpr int64_t kWidth = 2 * Tile::kFloats;  // of a panel: the columns of a tile
  static constexpr int64_t kChunk = 512;                // columns of b that are copied at once, to stay in the cache
  static constexpr int64_t kRowsAtOnce = 240;           // rows of a that stay in the cache
  static constexpr int64_t kFar = 512;  // floats between rows of b above which they share sets of the cache
  static constexpr int64_t kRowsThatPay = 4 * Tile::kRows;  // of a: with fewer, copying costs more than it gains
  static constexpr int64_t kWorkOfTeam = 1 << 19;           // multiplications: less is done before a team has begun

  struct Run {
    const Matrices& of;
    int64_t panels;
    int threads;
    float* buffer;  // a part for each thread
  };

  static int64_t Panels(int64_t columns) { return (columns + kWidth - 1) / kWidth; }

  // What one thread of a team does: panels of columns of its own or, where there are too few, rows.
  static void Share(const Run& run, int number, int team) {
    const auto part = [&](int64_t of, int which) { return of * which / team; };
    const int64_t rows = run.of.sizes[0];
    float* buffer = run.buffer + number * run.of.depth * std::min(kChunk, run.panels * kWidth);
    if (run.panels >= team)
      Block(run.of, 0, rows, part(run.panels, number), part(run.panels, number + 1), buffer);
    else
      Block(run.of, part(rows, number), part(rows, number + 1), 0, run.panels, buffer);
  }

  static void Block(const Matrices& of, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end, float* buffer) {
    const auto [rows, columns, others] = of.sizes;
    const auto [a_row, a_column, b_row, b_column] = of.strides;
    for (; panel < panel_end && row < row_end; panel += kChunk / kWidth) {
      const int64_t end = std::min(panel_end, panel + kChunk / kWidth);
      for (int64_t k = 0; k < columns; k += of.depth) {
        const int64_t depth = std::min(of.depth, columns - k);
        for (int64_t p = panel; p < end; ++p)
          if (const int64_t n = p * kWidth; Copied(of, n))
            Copy(of.b + k * b_row + n * b_column, b_row, b_column, depth, std::min(kWidth, others - n),
                 buffer + (p - panel) * of.depth * kWidth);
        for (int64_t m = row; m < row_end; m += kRowsAtOnce)
          for (int64_t p = panel; p < end; ++p) {
            const int64_t n = p * kWidth;
            const bool copied = Copied(of, n);
            TileArgs args{of.a + m * a_row + k * a_column,
                          copied ? buffer + (p - panel) * of.depth * kWidth : of.b + k * b_row + n,
                          of.c + m * others + n,
                          k > 0    ? of.c + m * others + n
                          : of.row ? of.row + n
                                   : nullptr,
                          a_row,
                          a_column,
                          copied ? kWidth : b_row,
                          others,
                          k > 0 ? others : 0,
                          depth};
            Column(args, std::min(kRowsAtOnce, row_end - m), std::min(kWidth, others - n));
          }
      }
    }
  }

  // Whether the panel that begins at column n is copied.
  static bool Copied(const Matrices& of, int64_t n) {
    const bool far = of.strides[2] >= kFar && of.sizes[0] >= kRowsThatPay;
    return of.strides[3] != 1 || far || n + kWidth > of.sizes[2];
  }

  // One panel times so many rows of a, in tiles of rows that are as equal as they can be.
  static void Column(TileArgs args, int64_t rows, int64_t width) {
    const bool narrow = width <= Tile::kFloats;
    int64_t tiles = (rows + Tile::kRows - 1) / Tile::kRows;
    for (; tiles > 0; --tiles) {
      const int64_t height = (rows + tiles - 1) / tiles;
      if (width == kWidth || (narrow && width == Tile::kFloats))
        kKernels[narrow][height - 1](args);
      else
        Edge(args, height, width, narrow);
      rows -= height;
      args.a += height * args.a_row, args.c += height * args.c_row;
      if (args.from) args.from += height * args.from_row;
    }
  }

  // A tile that has fewer columns than its vectors.
  static void Edge(const TileArgs& args, int64_t height, int64_t width, bool narrow) {
    float to[Tile::kRows * kWidth], from[Tile::kRows * kWidth];
    TileArgs whole = args;
    whole.c = to, whole.c_row = kWidth;
    if (args.from) {
      for (int64_t i = 0; i < height; ++i) std::copy_n(args.from + i * args.from_row, width, from + i * kWidth);
      for (int64_t i = 0; i < height; ++i) std::fill(from + i * kWidth + width, from + (i + 1) * kWidth, 0.0F);
      whole.from = from, whole.from_row = kWidth;
    }
    kKernels[narrow][height - 1](whole);
    for (int64_t i = 0; i < height; ++i) std::copy_n(to + i * kWidth, width, args.c + i * args.c_row);
  }

  // `depth` rows of a panel, one behind the other, with zeros behind its last column.
  static void Copy(const float* b, int64_t b_row, int64_t b_column, int64_t depth, int64_t width, float* to) {
    int64_t k = 0;
    if (b_row == 1 && b_column != 1)
      for (; k + 8 <= depth; k += 8) {
        int64_t n = 0;
        for (; n + 8 <= width; n += 8) Transpose(b + k + n * b_column, b_column, to + k * kWidth + n, kWidth);
        for (int64_t i = 0; i < 8; ++i) Line(b + k + i, b_column, n, width, to + (k + i) * kWidth);
      }
    for (; k < depth; ++k) Line(b + k * b_row, b_column, 0, width, to + k * kWidth);
  }
  static void Line(const float* b, int64_t b_column, int64_t n, int64_t width, float* to) {
    if (b_column == 1)
      std::copy(b + n, b + width, to + n);
    else
      for (; n < width; ++n) to[n] = b[n * b_column];
    std::fill(to + width, to + kWidth, 0.0F);
  }

  using Kernel = void (*)(const TileArgs&);
  template <int vectors, int... i>
  static constexpr std::array<Kernel, Tile::kRows> Kernels(std::integer_sequence<int, i...>) {
    return {&Tile::template Run<i + 1, vectors>...};
  }
  // [whether half a panel's columns are enough][rows - 1]
  static constexpr std::array<std::array<Kernel, Tile::kRows>, 2> kKernels{
      Kernels<2>(std::make_integer_sequence<int, Tile::kRows>()),
      Kernels<1>(std::make_integer_sequence<int, Tile::kRows>())};
};

inline bool Has512() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  return has;
}

// Whether this processor has the vectors.
inline bool CanMultiplyByTiles() {
  static const bool has256 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has256;
}

inline void MultiplyByTiles(const Matrices& of) {
  Has512() ? Tiles<Tile512>::Multiply(of) : Tiles<Tile256>::Multiply(of);
}

#else

inline bool CanMultiplyByTiles() { return false; }
inline void MultiplyByTiles(const Matrices&) {}

#endif

}  // namespace engine_torch
