// Products of small matrices of float32 that are in a cache.

#pragma once

#include "vectors.h"

namespace addnorm {

// The rows and registers of a product whose sums are in registers at a time.
#ifdef __AVX512F__
constexpr int64_t ROWS = 8, COLUMNS = 2;
#else
constexpr int64_t ROWS = 4, COLUMNS = WIDTH / LANES;
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
  Register sums[ROWS][N];
#pragma GCC unroll 8
  for (int64_t r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int64_t n = 0; n < N; ++n)
      sums[r][n] = add ? load_register(c + r * ldc + n * LANES) : Register{};
  for (int64_t i = 0; i < inner; ++i, b += ldb, a.data += a.column) {
    Register row[N];
#pragma GCC unroll 4
    for (int64_t n = 0; n < N; ++n) row[n] = load_register(b + n * LANES);
#pragma GCC unroll 8
    for (int64_t r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int64_t n = 0; n < N; ++n) sums[r][n] += a.data[r * a.row] * row[n];
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int64_t n = 0; n < N; ++n) store_register(c + r * ldc + n * LANES, sums[r][n]);
}

// c = a b, or c += a b, of m rows, a multiple of ROWS, and n columns, a multiple of WIDTH.
inline void multiply(int64_t m, int64_t n, int64_t inner, Factor a, const float* b, int64_t ldb,
                     float* c, int64_t ldc, bool add = false) {
  for (int64_t j = 0; j < n; j += COLUMNS * LANES)
    for (int64_t r = 0; r < m; r += ROWS) {
      const Factor rows{a.data + r * a.row, a.row, a.column};
      const auto tile = j + COLUMNS * LANES <= n ? multiply_tile<COLUMNS> : multiply_tile<1>;
      tile(inner, rows, b + j, ldb, c + r * ldc + j, ldc, add);
    }
}

}  // namespace addnorm
