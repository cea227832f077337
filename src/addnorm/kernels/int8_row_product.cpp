// x (s ⊙ Q)ᵀ + b for a few rows x and some matrices in eight bits, each read once for all rows.
//
// x is rounded to 24 bits, not to bytes: three products of bytes cost less than widening the
// weights, and their sums are exact.

#include "row_product.h"

namespace {

using namespace addnorm;

constexpr int64_t STEP = sizeof(RegisterBytes);
constexpr int64_t CHUNK = 1 << 16;  // columns, which add up to less than 2^31
constexpr int DIGITS = 3;
constexpr int32_t BASE = 255;
constexpr int32_t LARGEST = 127 * (BASE * BASE + BASE + 1);  // all digits 127; 2 LARGEST + 1 = 255³

inline Integers whole(Wide x) { return __builtin_convertvector(x, Integers); }

// x / 255 without the rest, for x from 0 to 255³.
inline Integers quotient(Integers x) {
  return whole((__builtin_convertvector(x, Wide) + 0.5) * (1. / BASE));
}

// The numbers of these digits, or of sums of them.
inline double value(const double (&of)[DIGITS]) { return (of[2] * BASE + of[1]) * BASE + of[0]; }

struct alignas(LINE) Part {
  int8_t digits[DIGITS][LINE] = {};  // the lowest first
};

// A row as integers of three digits: x[i] ≈ step · (255² d₂ + 255 d₁ + d₀), with digits from -127
// to 127. That is as exact as float32 is for the largest number, which is 8,290,687 steps.
struct FixedPoint {
  double step;            // NaN if some number is not finite
  double correction = 0;  // SHIFT times the sum of the row, in steps
  std::vector<Part> parts;

  template <typename Number>
  FixedPoint(const Number* x, int64_t n) : parts((n + LINE - 1) / LINE) {
    Integers sizes = {};
    for (int64_t i = 0; i < n; i += WIDTH) sizes = larger(sizes, magnitudes(load_some(x, i, n)));
    const double size = largest(sizes);
    step = size / LARGEST;
    if (!(size > 0)) return;
    for (int64_t i = 0; i < n; i += WIDTH) {
      const Wide wide = __builtin_convertvector(load_some(x, i, n), Wide);
      const Integers low = whole(wide * (LARGEST / size) + (LARGEST + 0.5));
      const Integers middle = quotient(low), high = quotient(middle);
      auto& digits = parts[i / LINE].digits;
      store_bytes(digits[0] + i % LINE, low - middle * BASE - 127);
      store_bytes(digits[1] + i % LINE, middle - high * BASE - 127);
      store_bytes(digits[2] + i % LINE, high - 127);
    }
    if (SHIFT) correct();
  }

  void correct() {
    double sums[DIGITS] = {};
    for (int k = 0; k < DIGITS; ++k) {
      RegisterIntegers total = {};
      for (int64_t i = 0; i < int64_t(parts.size()) * LINE; i += STEP)
        total = dot(total, RegisterBytes{} + 1, load(k, i));
      for (int i = 0; i < LANES; ++i) sums[k] += total[i];
    }
    correction = SHIFT * value(sums);
  }

  RegisterBytes load(int digit, int64_t i) const {
    return load_bytes(parts[i / LINE].digits[digit] + i % LINE);
  }
};

struct Points : std::vector<FixedPoint> {
  template <typename Number>
  Points(const Number* x, int64_t rows, int64_t d_in, int64_t) {
    for (int64_t row = 0; row < rows; ++row) emplace_back(x + row * d_in, d_in);
  }
};

template <typename Number>
struct Product : Columns<Number> {
  using Factors = Points;
  using Weight = int8_t;
  static constexpr int ROWS = LANES == 8 ? 1 : 2, OUTPUTS = 4;  // at a time, in registers

  const Points& points;  // of each row of x
  const int8_t* values;
  const float* scale;

  Product(const Columns<Number>& columns, const Points& points, const Tensor& values,
          const Tensor& scale)
      : Columns<Number>(columns), points(points), values(pointer<int8_t>(values)),
        scale(pointer<float>(scale)) {}

  // Every `apart`-th output from `first`, of the rows from `row`.
  template <int ROWS, int OUTPUTS>
  void block(int64_t row, int64_t first, int64_t apart) const {
    const int64_t d_in = this->d_in;
    double totals[ROWS][OUTPUTS];
    for (int r = 0; r < ROWS; ++r)
      for (double& total : totals[r]) total = -points[row + r].correction;
    Ahead<Product> ahead(row, this->rows, d_in, STEP);
    for (int64_t start = 0; start < d_in; start += CHUNK) {
      const int64_t end = std::min(d_in, start + CHUNK);
      RegisterIntegers sums[ROWS][DIGITS][OUTPUTS] = {};
      int64_t i = start;
      for (; i + STEP <= end; i += STEP, ahead.step()) add(sums, row, first, apart, i, STEP, ahead);
      if (i < end) add(sums, row, first, apart, i, end - i, ahead);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) add_values(totals[r], sums[r]);
    }
    for (int r = 0; r < ROWS; ++r)
      for (int o = 0; o < OUTPUTS; ++o) {
        const int64_t output = first + o * apart;
        this->put(row + r, output, totals[r][o] * points[row + r].step * scale[output]);
      }
  }

  template <int OUTPUTS>
  static void add_values(double (&totals)[OUTPUTS],
                         const RegisterIntegers (&sums)[DIGITS][OUTPUTS]) {
    int32_t digits[DIGITS][OUTPUTS] = {};
#pragma GCC unroll 4
    for (int k = 0; k < DIGITS; ++k) {
      if constexpr (OUTPUTS == 4) {
        const auto four = sums_of_registers(sums[k][0], sums[k][1], sums[k][2], sums[k][3]);
        std::memcpy(digits[k], &four, sizeof four);
      } else {
        for (int o = 0; o < OUTPUTS; ++o)
          for (int i = 0; i < LANES; ++i) digits[k][o] += sums[k][o][i];
      }
    }
    for (int o = 0; o < OUTPUTS; ++o)
      totals[o] += value({double(digits[0][o]), double(digits[1][o]), double(digits[2][o])});
  }

  template <int ROWS, int OUTPUTS>
  __attribute__((always_inline)) void add(RegisterIntegers (&sums)[ROWS][DIGITS][OUTPUTS],
                                          int64_t row, int64_t first, int64_t apart, int64_t i,
                                          int64_t n, Ahead<Product> ahead) const {
    RegisterBytes weights[OUTPUTS];
#pragma GCC unroll 4
    for (int o = 0; o < OUTPUTS; ++o) {
      const int8_t* from = values + (first + o * apart) * this->d_in + i;
      weights[o] = load_bytes(from, n);
      if (SHIFT) weights[o] ^= int8_t(-128);
      ahead.fetch(from);
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int k = 0; k < DIGITS; ++k) {
        const RegisterBytes factors = points[row + r].load(k, i);
#pragma GCC unroll 4
        for (int o = 0; o < OUTPUTS; ++o) sums[r][k][o] = dot(sums[r][k][o], weights[o], factors);
      }
  }
};

Tensor int8_row_product(Tensor x, std::vector<Tensor> values, std::vector<Tensor> scales,
                        std::optional<std::vector<Tensor>> biases) {
  check(values.size() == scales.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const Tensor &matrix = values[i], &scale = scales[i];
    check(x.size(-1) == matrix.size(1) && scale.size(0) == matrix.size(0));
    check(matrix.scalar_type() == ScalarType::Char && scale.scalar_type() == ScalarType::Float);
  }
  return multiplied<Product>(x, biases, values, scales);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("int8_row_product", TORCH_BOX(&int8_row_product));
}
