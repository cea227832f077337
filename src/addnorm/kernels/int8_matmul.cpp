// X Qᵀ of integers from -127 to 127 and any bytes, exact: each byte of Q is read once for all rows.

#include "row_product.h"

namespace {

using namespace addnorm;

constexpr int64_t STEP = sizeof(RegisterBytes);

struct Product {
  static constexpr int ROWS = LANES == 8 ? 2 : 4, OUTPUTS = 4;  // at a time, in registers

  const int8_t *x, *values;
  int32_t* y;
  const int32_t* corrections;  // SHIFT times the sum of each row of x
  int64_t rows, d_in, d_out;

  // Every `apart`-th output from `first`, of the rows from `row`.
  template <int ROWS, int OUTPUTS>
  void block(int64_t row, int64_t first, int64_t apart) const {
    RegisterIntegers totals[ROWS][OUTPUTS] = {};
    int64_t i = 0;
    for (; i + STEP <= d_in; i += STEP) add(totals, row, first, apart, i, STEP);
    if (i < d_in) add(totals, row, first, apart, i, d_in - i);
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
      int32_t* to = y + (row + r) * d_out + first;
      if constexpr (OUTPUTS == 4) {
        const FourIntegers four =
            sums_of_registers(totals[r][0], totals[r][1], totals[r][2], totals[r][3]);
        for (int o = 0; o < OUTPUTS; ++o) to[o * apart] = four[o] - corrections[row + r];
      } else {
        *to = -corrections[row + r];
        for (int i = 0; i < LANES; ++i) *to += totals[r][0][i];
      }
    }
  }

  template <int ROWS, int OUTPUTS>
  __attribute__((always_inline)) void add(RegisterIntegers (&totals)[ROWS][OUTPUTS], int64_t row,
                                          int64_t first, int64_t apart, int64_t i,
                                          int64_t n) const {
    RegisterBytes weights[OUTPUTS];
#pragma GCC unroll 4
    for (int o = 0; o < OUTPUTS; ++o) {
      const int8_t* from = values + (first + o * apart) * d_in + i;
      weights[o] = load_bytes(from, n);
      if (SHIFT) weights[o] ^= int8_t(-128);
      to_second_cache(from + SOON);
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r) {
      const RegisterBytes factors = load_bytes(x + (row + r) * d_in + i, n);
#pragma GCC unroll 4
      for (int o = 0; o < OUTPUTS; ++o) totals[r][o] = dot(totals[r][o], weights[o], factors);
    }
  }
};

Tensor by_torch(const Tensor& x, const Tensor& values) {
  StableIValue stack[] = {torch::stable::detail::from(x),
                          torch::stable::detail::from(torch::stable::transpose(values, 0, 1))};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::_int_mm", "", stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

// For more than `few` rows it is torch's product.
Tensor int8_matmul(Tensor of, Tensor values, int64_t few) {
  const Tensor x = as_contiguous(of);
  const int64_t rows = x.size(0), d_in = x.size(1), d_out = values.size(0);
  check(d_in == values.size(1));
  check(x.scalar_type() == ScalarType::Char && values.scalar_type() == ScalarType::Char);
  if (rows > few) return by_torch(x, values);
  Tensor result = with_width(x, d_out, ScalarType::Int);
  std::vector<int32_t> corrections(rows);
  const int8_t* row = pointer<int8_t>(x);
  for (int32_t& correction : corrections) {
    for (int64_t i = 0; i < d_in; ++i) correction += SHIFT * row[i];
    row += d_in;
  }
  auto* y = static_cast<int32_t*>(result.data_ptr());
  const std::vector<Product> products = {
      {pointer<int8_t>(x), pointer<int8_t>(values), y, corrections.data(), rows, d_in, d_out}};
  torch::stable::parallel_for(0, blocks_of<Product>(d_out), 1, [&](int64_t begin, int64_t end) {
    fill(products, begin, end);
  });
  return result;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("int8_matmul", TORCH_BOX(&int8_matmul));
}
