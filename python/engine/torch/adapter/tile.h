// TILE_NAME: a struct with one tile of a product of matrices, for the vectors of one kind of processor. Included by tiles.h
// once for each kind, with TILE_NAME, TILE_TARGET (what the compiler may use), TILE_FLOATS (of a vector) and TILE_ROWS (as
// many as leave registers for the rest). No include guard: it is a template over a target, which C++ lacks.

struct TILE_NAME {
  static constexpr int kFloats = TILE_FLOATS, kRows = TILE_ROWS;
  typedef float Vector __attribute__((vector_size(4 * TILE_FLOATS)));
  // As Vector, anywhere in memory.
  typedef float Unaligned __attribute__((vector_size(4 * TILE_FLOATS), aligned(4), may_alias));

  // c = from + a @ b, for `rows` rows and `vectors` vectors. Each number's sum starts at 0 and is made in the order of k with
  // fused multiply-adds, as libraries do it, so that results can be equal to theirs; `from` is added last.
  template <int rows, int vectors>
  __attribute__((target(TILE_TARGET))) static void Run(const TileArgs& of) {
    Vector sum[rows][vectors] = {};
    const float *a = of.a, *b = of.b;
    for (int64_t k = 0; k < of.depth; ++k, a += of.a_column, b += of.b_row) {
      Vector part[vectors];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) part[v] = *reinterpret_cast<const Unaligned*>(b + v * kFloats);
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i) {
        const float factor = a[i * of.a_row];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) sum[i][v] += factor * part[v];
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        Unaligned& to = *reinterpret_cast<Unaligned*>(of.c + i * of.c_row + v * kFloats);
        if (of.from)
          to = *reinterpret_cast<const Unaligned*>(of.from + i * of.from_row + v * kFloats) + sum[i][v];
        else
          to = sum[i][v];
      }
  }
};

#undef TILE_NAME
#undef TILE_TARGET
#undef TILE_FLOATS
#undef TILE_ROWS
