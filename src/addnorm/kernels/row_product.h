// What products of a few rows with matrices have in common: their results, in blocks.
//
// The results of several matrices are side by side, as if the matrices were one.

#pragma once

#include "vectors.h"

namespace addnorm {

// The columns of the result that belong to one matrix, and their bias or null.
template <typename Number>
struct Columns {
  const Number* bias;
  Number* y;  // the first of them
  int64_t rows, d_in, d_out;
  int64_t stride;  // from one row of the result to the next

  template <typename Sum>
  void put(int64_t row, int64_t output, Sum total) const {
    const Sum shift = bias ? number(bias[output]) : 0.f;
    store(y + row * stride + output, float(total + shift));
  }

  // The sums of vectors, which are in registers: hence loops that are unrolled.
  template <int ROWS, int OUTPUTS>
  __attribute__((always_inline)) void put_sums(int64_t row, int64_t first, int64_t apart,
                                               const Vector (&totals)[ROWS][OUTPUTS]) const {
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
      if constexpr (OUTPUTS == 4) {
        const Four four = sums(totals[r][0], totals[r][1], totals[r][2], totals[r][3]);
        for (int o = 0; o < OUTPUTS; ++o) put(row + r, first + o * apart, four[o]);
      } else {
        for (int o = 0; o < OUTPUTS; ++o) put(row + r, first + o * apart, sum(totals[r][o]));
      }
    }
  }
};

constexpr int64_t SOON = 1024;  // bytes

// Where a group of rows asks for weights, while it computes with those of `size` bytes an output.
//
// A single group does so SOON before it reads them. Of several, each asks for its share of those
// of the next output: memory then delivers all the time, not only while the first group waits.
template <typename Product>
struct Ahead {
  int64_t distance = SOON, drift = 0;  // in bytes, after each step of `step` bytes

  Ahead(int64_t row, int64_t rows, int64_t size, int64_t step) {
    const int64_t groups = (rows + Product::ROWS - 1) / Product::ROWS;
    if (groups < 2) return;
    distance = size + size * (row / Product::ROWS) / groups;
    drift = step / groups - step;
  }

  // Past the end of memory nothing happens.
  __attribute__((always_inline)) void fetch(const void* from) const {
    to_second_cache(static_cast<const char*>(from) + distance);
  }

  void step() { distance += drift; }
};

// The number of blocks of outputs.
template <typename Product>
constexpr int64_t blocks_of(int64_t d_out) {
  return (d_out + Product::OUTPUTS - 1) / Product::OUTPUTS;
}

// The result for all rows of OUTPUTS outputs, every `apart`-th, whose weights are read once.
template <int OUTPUTS, typename Product>
inline void of_all_rows(const Product& product, int64_t first, int64_t apart = 0) {
  constexpr int ROWS = Product::ROWS;
  int64_t row = 0;
  for (; row + ROWS <= product.rows; row += ROWS)
    product.template block<ROWS, OUTPUTS>(row, first, apart);
  if constexpr (ROWS > 2)
    for (; row + 2 <= product.rows; row += 2) product.template block<2, OUTPUTS>(row, first, apart);
  for (; row < product.rows; ++row) product.template block<1, OUTPUTS>(row, first, apart);
}

// The results of blocks of outputs from `begin` to `end`, which are counted through all matrices.
//
// Their weights are OUTPUTS streams, each in the order of memory: a processor by itself fetches what
// comes next in a long stream, and does not follow one that jumps after every row.
template <typename Product>
void fill(const std::vector<Product>& products, int64_t begin, int64_t end) {
  constexpr int64_t OUTPUTS = Product::OUTPUTS;
  for (const Product& product : products) {
    const int64_t n = blocks_of<Product>(product.d_out), whole = product.d_out / OUTPUTS;
    const int64_t start = std::max(begin, int64_t(0)), apart = std::min(end, whole) - start;
    for (int64_t i = 0; i < apart; ++i) of_all_rows<OUTPUTS>(product, OUTPUTS * start + i, apart);
    if (start <= whole && whole < end)
      for (int64_t i = OUTPUTS * whole; i < product.d_out; ++i) of_all_rows<1>(product, i);
    begin -= n, end -= n;
  }
}

// The number of rows that lie before the last axis.
inline int64_t rows_of(const Tensor& x) {
  int64_t rows = 1;
  for (int64_t axis = 0; axis < x.dim() - 1; ++axis) rows *= x.size(axis);
  return rows;
}

// An empty tensor of the axes of x, the last of them with another size.
inline Tensor with_width(const Tensor& x, int64_t width, std::optional<ScalarType> type = {}) {
  std::vector<int64_t> shape;
  for (int64_t axis = 0; axis < x.dim() - 1; ++axis) shape.push_back(x.size(axis));
  shape.push_back(width);
  return torch::stable::new_empty(x, shape, type);
}

// The tensor itself where it is contiguous already, for torch's function takes a microsecond.
inline Tensor as_contiguous(const Tensor& x) {
  return x.is_contiguous() ? x : torch::stable::contiguous(x);
}

// x W′ᵀ + b of all matrices W′ by `Product<Number>`, which is made of a part of the result, of x as
// `Product<Number>::Factors`, and of the tensors of a matrix. Biases are for all of them or null.
// Each thread makes factors of its own, as no thread then waits, unless the product is SHARED.
template <template <typename> typename Product, typename... Tensors>
Tensor multiplied(const Tensor& of, const std::optional<std::vector<Tensor>>& biases,
                  const std::vector<Tensor>& matrices, const Tensors&... others) {
  const Tensor x = as_contiguous(of);
  const ScalarType type = x.scalar_type();
  check(type == ScalarType::Float || type == ScalarType::BFloat16);
  check(((others.size() == matrices.size()) && ...));
  auto regular = [](const Tensor& of) { return of.is_contiguous(); };
  for (const auto* list : {&matrices, &others...})
    check(std::all_of(list->begin(), list->end(), regular));
  check(!biases || biases->size() == matrices.size());
  int64_t d_out = 0, width = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const int64_t n = matrices[i].size(0);
    check(matrices[i].dim() == 2);
    check(!biases || ((*biases)[i].scalar_type() == type && (*biases)[i].size(0) == n));
    check(!biases || regular((*biases)[i]));
    d_out += n;
    width = std::max(width, matrices[i].size(1));
  }
  const int64_t rows = rows_of(x), d_in = x.size(-1);
  Tensor result = with_width(x, d_out);
  auto with = [&]<typename Number>(Number* result) {
    int64_t blocks = 0;
    for (const Tensor& matrix : matrices) blocks += blocks_of<Product<Number>>(matrix.size(0));
    auto part = [&](const typename Product<Number>::Factors& factors, int64_t begin, int64_t end) {
      std::vector<Product<Number>> products;
      products.reserve(matrices.size());
      Number* y = result;
      for (size_t i = 0; i < matrices.size(); ++i) {
        const Number* bias = biases ? pointer<Number>((*biases)[i]) : nullptr;
        const Columns<Number> columns = {bias, y, rows, d_in, matrices[i].size(0), d_out};
        products.emplace_back(columns, factors, matrices[i], others[i]...);
        y += columns.d_out;
      }
      fill(products, begin, end);
    };
    using Factors = typename Product<Number>::Factors;
    if constexpr (requires { Product<Number>::SHARED; }) {
      const Factors factors(pointer<Number>(x), rows, d_in, width);
      torch::stable::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
        part(factors, begin, end);
      });
    } else {
      torch::stable::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
        part(Factors(pointer<Number>(x), rows, d_in, width), begin, end);
      });
    }
  };
  if (type == ScalarType::Float)
    with(static_cast<float*>(result.data_ptr()));
  else
    with(static_cast<BFloat16*>(result.data_ptr()));
  return result;
}

}  // namespace addnorm
