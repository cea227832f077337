// The heads of attention as matrices, of a tensor [batch, seq, heads, width].

#pragma once

#include "vectors.h"

namespace addnorm {

// The matrix of a head, such as its keys; the numbers of a row are adjacent.
template <typename Number>
struct Matrix {
  Number* data;
  int64_t rows, width, stride;

  Number* row(int64_t i) const { return data + i * stride; }
};

// Calls `pass(offset, n)` for up to WIDTH numbers of a row at a time.
template <typename Pass>
inline void along(int64_t width, const Pass& pass) {
  int64_t d = 0;
  for (; d + WIDTH <= width; d += WIDTH) pass(d, WIDTH);
  if (d < width) pass(d, width - d);
}

// Head `h` of row `i` of the batch.
template <typename Number>
Matrix<Number> head_of(const Tensor& of, int64_t i, int64_t h) {
  auto* data = static_cast<Number*>(const_cast<void*>(of.data_ptr()));
  return {data + i * of.stride(0) + h * of.stride(2), of.size(1), of.size(3), of.stride(1)};
}

// Throws unless these are heads of one type, whose numbers are adjacent.
inline void check_heads(const Tensor& x, ScalarType type) {
  check(x.dim() == 4 && x.scalar_type() == type && (x.stride(3) == 1 || x.size(3) < 2));
}

// A contiguous tensor of the shape and type of another.
inline Tensor contiguous_like(const Tensor& x) {
  const int64_t shape[] = {x.size(0), x.size(1), x.size(2), x.size(3)};
  return torch::stable::new_empty(x, shape);
}

}  // namespace addnorm
