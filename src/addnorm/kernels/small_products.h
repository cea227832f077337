// Products of small matrices of float32 that are in a cache.

#pragma once

#include "vectors.h"

namespace addnorm {

// The rows and vectors of a product whose sums are in registers at a time.
#ifdef __AVX512F__
constexpr int64_t ROWS = 8, VECTORS = 2;
#else
constexpr int64_t ROWS = 4, VECTORS = 1;
#endif

inline int64_t padded(int64_t n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

// The first factor of a product, read number by number: as it is or transposed.
struct Factor {
  const float* data;
  int64_t row, column;
};

template <int64_t N>
inline void multiply_tile(int64_t inner, Factor a, const float* b, int64_t ldb, float* c,
                          int64_t ldc, bool add) {
  Vector sums[ROWS][N];
#pragma GCC unroll 8
  for (int64_t r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
    for (int64_t n = 0; n < N; ++n) sums[r][n] = add ? load(c + r * ldc + n * WIDTH) : Vector{};
  for (int64_t i = 0; i < inner; ++i, b += ldb, a.data += a.column) {
    Vector row[N];
#pragma GCC unroll 2
    for (int64_t n = 0; n < N; ++n) row[n] = load(b + n * WIDTH);
#pragma GCC unroll 8
    for (int64_t r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
      for (int64_t n = 0; n < N; ++n) sums[r][n] += a.data[r * a.row] * row[n];
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
    for (int64_t n = 0; n < N; ++n) store(c + r * ldc + n * WIDTH, sums[r][n]);
}

// c = a b, or c += a b, of m rows, a multiple of ROWS, and n columns, a multiple of WIDTH.
inline void multiply(int64_t m, int64_t n, int64_t inner, Factor a, const float* b, int64_t ldb,
                     float* c, int64_t ldc, bool add = false) {
  for (int64_t j = 0; j < n; j += VECTORS * WIDTH)
    for (int64_t r = 0; r < m; r += ROWS) {
      const Factor rows{a.data + r * a.row, a.row, a.column};
      const auto tile = j + VECTORS * WIDTH <= n ? multiply_tile<VECTORS> : multiply_tile<1>;
      tile(inner, rows, b + j, ldb, c + r * ldc + j, ldc, add);
    }
}

}  // namespace addnorm
