// Products of bfloat16 with sums in float32, and their factors: by oneDNN, which torch includes,
// where it has them for the processor, and otherwise by vectors.

#pragma once

#include "heads.h"
#include "matmul_tile.h"

#include <torch/headeronly/util/BFloat16.h>

namespace at::native::cpublas {  // of libtorch_cpu, in no header of the stable interface
void brgemm(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc, bool add,
            const c10::BFloat16* a, const c10::BFloat16* b, float* c, bool paired);
void brgemm_release(bool paired);
}  // namespace at::native::cpublas

namespace addnorm {

// Whether oneDNN has these products. It needs instructions for bfloat16 of an x86 processor.
inline bool onednn_multiplies() {
  static const bool result = [] {
    try {
      c10::BFloat16 factors[4] = {};
      float product[4];
      at::native::cpublas::brgemm(2, 2, 2, 2, 2, 2, false, factors, factors, product, true);
      at::native::cpublas::brgemm_release(true);
      return true;
    } catch (...) {  // in the words of torch or of oneDNN
      return false;
    }
  }();
  return result;
}

// The product of `multiply` for R rows and up to WIDTH columns.
template <int64_t R>
inline void multiply_vectors(int64_t n, int64_t k, const BFloat16* a, int64_t lda,
                             const BFloat16* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  Parts sums[R] = {};
  for (int64_t i = 0; i < k; i += 2, b += 2 * ldb) {
    const auto pairs = bits_as<Parts>(load(reinterpret_cast<const float*>(b), n));
#pragma GCC unroll 4
    for (int64_t r = 0; r < R; ++r) {
      float pair;
      std::memcpy(&pair, a + r * lda + i, sizeof pair);
#pragma GCC unroll 4
      for (int64_t l = 0; l < WIDTH / LANES; ++l)
        sums[r].of[l] = Pairs::add(sums[r].of[l], everywhere(pair), pairs.of[l]);
    }
  }
#pragma GCC unroll 4
  for (int64_t r = 0; r < R; ++r, c += ldc)
    store(c, bits_as<Vector>(sums[r]) + (add ? load(c, n) : Vector{}), n);
}

// c = a b, or c += a b: `a` has m rows of k. The rows of b are interleaved in pairs: b[0][0],
// b[1][0], b[0][1], b[1][1], … (`in_pairs`), as oneDNN reads them. m and k are even.
inline void multiply(int64_t m, int64_t n, int64_t k, const BFloat16* a, int64_t lda,
                     const BFloat16* b, int64_t ldb, float* c, int64_t ldc, bool add = false) {
  if (onednn_multiplies()) {
    auto numbers = [](const BFloat16* x) { return reinterpret_cast<const c10::BFloat16*>(x); };
    at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, numbers(a), numbers(b), c, true);
    return;
  }
  along(n, [&](int64_t j, int64_t some) {
    for (int64_t r = 0; r < m; r += 4) {
      const auto product = r + 4 <= m ? multiply_vectors<4> : multiply_vectors<2>;
      product(some, k, a + r * lda, lda, b + 2 * j, ldb, c + r * ldc + j, ldc, add);
    }
  });
}

// Ends a thread's products.
inline void release_products() {
  if (onednn_multiplies()) at::native::cpublas::brgemm_release(true);
}

using Input = Matrix<const BFloat16>;
using Output = Matrix<BFloat16>;

// Throws unless these are heads for attention, whose numbers can be read in pairs.
inline void check_pairs(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  for (const Tensor& x : {q, k, v}) {
    check_heads(x, ScalarType::BFloat16);
    check(x.size(1) % 2 == 0 && x.size(3) % 2 == 0);
    for (int64_t axis = 0; axis < 3; ++axis) check(x.size(axis) < 2 || x.stride(axis) % 2 == 0);
  }
  check_same_sizes(k, v);
  for (int64_t axis : {0, 2, 3}) check(q.size(axis) == k.size(axis));
  check(!causal || q.size(1) == k.size(1));
}

// The rows interleaved in pairs; two of them take `line` pairs of numbers.
inline void in_pairs(const Input& of, BFloat16* to, int64_t line) {
  for (int64_t i = 0; i < of.rows; i += 2, to += 2 * line)
    along(of.width, [&](int64_t d, int64_t n) {
      const Bits even = (Bits)load(of.row(i) + d, n), odd = (Bits)load(of.row(i + 1) + d, n);
      const Bits pairs = even >> 16 | odd;
      std::memcpy(to + 2 * d, &pairs, 2 * n * sizeof(BFloat16));
    });
}

// Calls `then(column, row, numbers, n)` for up to WIDTH numbers of a column, from a row on.
template <typename Number, typename Then>
void each_column(const Matrix<const Number>& of, const Then& then) {
  for (int64_t i = 0; i < of.rows; i += WIDTH)
    for (int64_t d = 0; d < of.width; d += WIDTH) {
      const int64_t n = std::min(WIDTH, of.rows - i), m = std::min(WIDTH, of.width - d);
      Vector square[WIDTH] = {};
      for (int64_t r = 0; r < n; ++r) square[r] = load(of.row(i + r) + d, m);
      transpose(square);
      for (int64_t c = 0; c < m; ++c) then(d + c, i, square[c], n);
    }
}

inline void transposed(const Input& of, BFloat16* to) {
  each_column(of, [&](int64_t column, int64_t row, Vector numbers, int64_t n) {
    const Halves halves = __builtin_convertvector((Bits)numbers >> 16, Halves);
    std::memcpy(to + column * of.rows + row, &halves, n * sizeof(BFloat16));
  });
}

// The transposed matrix with its rows interleaved in pairs: pairs of a row are moved as a number.
inline void transposed_in_pairs(const Input& of, BFloat16* to) {
  const auto* pairs = reinterpret_cast<const float*>(of.data);
  const Matrix<const float> numbers{pairs, of.rows, of.width / 2, of.stride / 2};
  each_column(numbers, [&](int64_t column, int64_t row, Vector of_column, int64_t n) {
    std::memcpy(to + 2 * (column * of.rows + row), &of_column, n * sizeof(float));
  });
}

}  // namespace addnorm
