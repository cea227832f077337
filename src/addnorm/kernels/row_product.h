// What products of a few rows with a matrix have in common: their rows, and blocks of the result.

#pragma once

#include "vectors.h"

namespace addnorm {

// The rows of x, the bias or null, and the result.
template <typename Number>
struct Rows {
  const Number *x, *bias;
  Number* y;
  int64_t rows, d_in, d_out;

  template <typename Sum>
  void put(int64_t row, int64_t output, Sum total) const {
    const Sum shift = bias ? number(bias[output]) : 0.f;
    store(y + row * d_out + output, float(total + shift));
  }
};

// The result for all rows of OUTPUTS outputs, whose weights are read from memory once.
template <int OUTPUTS, typename Product>
inline void of_all_rows(const Product& product, int64_t first) {
  constexpr int ROWS = Product::ROWS;
  int64_t row = 0;
  for (; row + ROWS <= product.rows; row += ROWS) product.template block<ROWS, OUTPUTS>(row, first);
  for (; row < product.rows; ++row) product.template block<1, OUTPUTS>(row, first);
}

// The result, on all threads.
template <typename Product>
void fill(const Product& product) {
  constexpr int OUTPUTS = Product::OUTPUTS;
  torch::stable::parallel_for(0, product.d_out / OUTPUTS, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) of_all_rows<OUTPUTS>(product, OUTPUTS * i);
  });
  for (int64_t o = product.d_out / OUTPUTS * OUTPUTS; o < product.d_out; ++o)
    of_all_rows<1>(product, o);
}

// x W′ᵀ + b by `Product<Number>`, made from these rows and the tensors of the matrix W′.
template <template <typename> typename Product, typename... Matrix>
Tensor multiplied(const Tensor& x, int64_t d_out, const std::optional<Tensor>& bias,
                  const Matrix&... matrix) {
  const ScalarType type = x.scalar_type();
  check(type == ScalarType::Float || type == ScalarType::BFloat16);
  check(!bias || (bias->scalar_type() == type && bias->size(0) == d_out));
  const int64_t shape[] = {x.size(0), d_out};
  Tensor y = torch::stable::new_empty(x, shape);
  auto with = [&]<typename Number>(Number* to) {
    const Rows<Number> rows = {pointer<Number>(x), pointer<Number>(bias), to,
                               x.size(0), x.size(1), d_out};
    fill(Product<Number>(rows, matrix...));
  };
  if (type == ScalarType::Float)
    with(static_cast<float*>(y.data_ptr()));
  else
    with(static_cast<BFloat16*>(y.data_ptr()));
  return y;
}

}  // namespace addnorm
