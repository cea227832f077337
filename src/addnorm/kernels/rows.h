// Rows of a tensor, wherever they are: the numbers of a row are adjacent.

#pragma once

#include "vectors.h"

namespace addnorm {

// The rows of a tensor [i, j, k, …], or none. An axis of size one stands for one of any size.
template <typename Number>
struct Rows {
  Number* data = nullptr;
  int64_t strides[3] = {};

  Rows() = default;
  explicit Rows(const Tensor& of) : data(static_cast<Number*>(const_cast<void*>(of.data_ptr()))) {
    for (int64_t axis = 0; axis + 1 < of.dim(); ++axis)
      strides[axis] = of.size(axis) > 1 ? of.stride(axis) : 0;
  }
  explicit Rows(const std::optional<Tensor>& of) : Rows(of ? Rows(*of) : Rows()) {}

  Number* at(int64_t i, int64_t j = 0, int64_t k = 0) const {
    return data ? data + i * strides[0] + j * strides[1] + k * strides[2] : nullptr;
  }
};

// Throws unless the numbers of the last axis are adjacent, and the axes have these sizes or one.
inline void check_rows(const Tensor& x, ScalarType type, std::initializer_list<int64_t> sizes) {
  check(x.scalar_type() == type && x.dim() == int64_t(sizes.size()));
  check(x.stride(x.dim() - 1) == 1 || x.size(x.dim() - 1) < 2);
  const int64_t* size = sizes.begin();
  for (int64_t axis = 0; axis < x.dim(); ++axis, ++size)
    check(x.size(axis) == *size || (x.size(axis) == 1 && axis + 1 < x.dim()));
}

}  // namespace addnorm
