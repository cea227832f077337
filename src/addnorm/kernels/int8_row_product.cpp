// x (s ⊙ Q)ᵀ + b for a few rows x and weights in eight bits, each read once for all rows.
//
// x is rounded to 24 bits, not to bytes (`fixed_point.h`): three products of bytes cost less than
// widening the weights, and their sums are exact.

#include "fixed_point.h"

namespace {

using namespace addnorm;

constexpr int64_t STEP = 4 * WIDTH;
constexpr int64_t CHUNK = 1 << 20;  // columns, of which a sixteenth adds up to less than 2^31
constexpr int OUTPUTS = SHIFT ? 4 : 2;  // at a time, in registers

inline Bytes load_bytes(const int8_t* from, int64_t n) {
  Bytes x = {};
  std::memcpy(&x, from, n);
  return SHIFT ? x ^ int8_t(-128) : x;
}

template <typename Number>
struct Product {
  const Number *x, *bias;  // bias: or null
  const int8_t* values;
  const float* scale;
  Number* y;
  int64_t rows, d_in, d_out;
  std::vector<FixedPoint> points;     // of each row of x
  std::vector<double> corrections;    // of each row, for SHIFT; integers, as all sums

  void prepare() {
    const int64_t width = (d_in + STEP - 1) / STEP * STEP;
    for (int64_t row = 0; row < rows; ++row) {
      const Number* from = x + row * d_in;
      points.emplace_back(width, [&](int64_t i) { return load_some(from, i, d_in); });
      Wide sums[DIGITS] = {};
      for (int64_t i = 0; SHIFT && i < width; i += STEP)
        for (int k = 0; k < DIGITS; ++k) {
          const Integers four = dot(Integers{}, Bytes{} + 1, points[row].load(k, i));
          sums[k] += __builtin_convertvector(four, Wide);
        }
      corrections.push_back(SHIFT * sum(value(sums)));
    }
  }

  // The outputs from `first`, of one row.
  template <int N>
  void block(int64_t row, int64_t first) {
    const FixedPoint& point = points[row];
    double totals[N];
    for (double& total : totals) total = -corrections[row];
    for (int64_t start = 0; start < d_in; start += CHUNK) {
      const int64_t end = std::min(d_in, start + CHUNK);
      Integers sums[N][DIGITS] = {};
      int64_t i = start;
      for (; i + STEP <= end; i += STEP) add<N>(sums, point, first, i, STEP);
      if (i < end) add<N>(sums, point, first, i, end - i);
      for (int o = 0; o < N; ++o) {
        Wide digits[DIGITS];
        for (int k = 0; k < DIGITS; ++k) digits[k] = __builtin_convertvector(sums[o][k], Wide);
        totals[o] += sum(value(digits));
      }
    }
    for (int o = 0; o < N; ++o) {
      const double shift = bias ? number(bias[first + o]) : 0.;
      store(y + row * d_out + first + o, float(totals[o] * point.step * scale[first + o] + shift));
    }
  }

  template <int N>
  inline void add(Integers (&sums)[N][DIGITS], const FixedPoint& point, int64_t first, int64_t i,
                  int64_t n) {
    Bytes weights[N];
    for (int o = 0; o < N; ++o) {
      const int8_t* from = values + (first + o) * d_in + i;
      weights[o] = load_bytes(from, n);
      prefetch(from + N * d_in);
    }
    for (int k = 0; k < DIGITS; ++k) {
      const Bytes factors = point.load(k, i);
      for (int o = 0; o < N; ++o) sums[o][k] = dot(sums[o][k], weights[o], factors);
    }
  }

  template <int N>
  void outputs(int64_t first) {
    for (int64_t row = 0; row < rows; ++row) block<N>(row, first);
  }

  void run() {
    prepare();
    torch::stable::parallel_for(0, d_out / OUTPUTS, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) outputs<OUTPUTS>(OUTPUTS * i);
    });
    for (int64_t o = d_out / OUTPUTS * OUTPUTS; o < d_out; ++o) outputs<1>(o);
  }
};

template <typename Number>
Tensor multiplied(const Tensor& x, const Tensor& values, const Tensor& scale,
                  const std::optional<Tensor>& bias) {
  const int64_t shape[] = {x.size(0), values.size(0)};
  Tensor y = torch::stable::new_empty(x, shape);
  Product<Number>{
      .x = pointer<Number>(x),
      .bias = pointer<Number>(bias),
      .values = pointer<int8_t>(values),
      .scale = pointer<float>(scale),
      .y = static_cast<Number*>(y.data_ptr()),
      .rows = x.size(0),
      .d_in = values.size(1),
      .d_out = values.size(0),
  }.run();
  return y;
}

Tensor int8_row_product(Tensor x, Tensor values, Tensor scale, std::optional<Tensor> bias) {
  check(x.size(1) == values.size(1) && scale.size(0) == values.size(0));
  auto with = x.scalar_type() == ScalarType::BFloat16 ? multiplied<BFloat16> : multiplied<float>;
  return with(x, values, scale, bias);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("int8_row_product", TORCH_BOX(&int8_row_product));
}
