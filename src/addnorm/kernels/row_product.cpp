// x Wᵀ + b for a few rows x and some matrices W, in float32 or bfloat16 with sums in float32.
//
// Every weight is read once, in the order of memory, for all rows. The result of a row depends
// neither on other rows nor on the number of threads.

#include "row_product.h"

namespace {

using namespace addnorm;

constexpr int64_t STEP = 2 * WIDTH;  // numbers at a time
constexpr int64_t LINE = 64;         // bytes

struct Pair {
  Vector first, second;
};

inline Pair load_pair(const float* from) { return {load(from), load(from + WIDTH)}; }

// The numbers at even places, then those at odd places: two bit operations, where widening in
// order needs the slower exchange of lanes.
inline Pair load_pair(const BFloat16* from) {
  Bits bits;
  std::memcpy(&bits, from, sizeof bits);
  return {(Vector)(bits << 16), (Vector)(bits & 0xffff0000u)};
}

// x in float32, in the order of `load_pair`, then zeros.
template <typename Number>
struct Wide {
  int64_t width;  // of a row
  std::vector<float> numbers;

  Wide(const Number* x, int64_t rows, int64_t d_in, int64_t)
      : width((d_in + STEP - 1) / STEP * STEP), numbers(rows * width) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < width; i += STEP) {
        Number some[STEP] = {};
        std::memcpy(some, x + row * d_in + i, std::min(STEP, d_in - i) * sizeof(Number));
        const Pair pair = load_pair(some);
        store(&numbers[row * width + i], pair.first);
        store(&numbers[row * width + i + WIDTH], pair.second);
      }
    }
  }
};

template <typename Number>
struct Product : Columns<Number> {
  using Factors = Wide<Number>;
  static constexpr int ROWS = 4, OUTPUTS = 4;  // at a time

  const Factors& x;
  const Number* weight;

  Product(const Columns<Number>& columns, const Factors& x, const Tensor& weight)
      : Columns<Number>(columns), x(x), weight(pointer<Number>(weight)) {}

  // The outputs from `first`, of the rows from `row`.
  template <int ROWS, int OUTPUTS>
  void block(int64_t row, int64_t first) const {
    Vector totals[ROWS][OUTPUTS] = {};
    const int64_t d_in = this->d_in;
    const float* factors = x.numbers.data() + row * x.width;
    const Number* w = weight + first * d_in;
    int64_t i = 0;
    for (; i + STEP <= d_in; i += STEP) add<ROWS, OUTPUTS>(totals, factors + i, w + i, d_in);
    if (int64_t rest = d_in - i) {
      Number last[OUTPUTS][STEP] = {};
      for (int o = 0; o < OUTPUTS; ++o)
        std::memcpy(last[o], w + o * d_in + i, rest * sizeof(Number));
      add<ROWS, OUTPUTS>(totals, factors + i, last[0], STEP);
    }
    for (int r = 0; r < ROWS; ++r)
      for (int o = 0; o < OUTPUTS; ++o) this->put(row + r, first + o, sum(totals[r][o]));
  }

  template <int ROWS, int OUTPUTS>
  void add(Vector (&totals)[ROWS][OUTPUTS], const float* factors, const Number* w,
           int64_t stride) const {
    Pair weights[OUTPUTS];
    for (int o = 0; o < OUTPUTS; ++o) {
      weights[o] = load_pair(w + o * stride);
      for (int64_t i = 0; i < STEP; i += LINE / sizeof(Number)) prefetch(w + (o + OUTPUTS) * stride + i);
    }
    for (int r = 0; r < ROWS; ++r) {
      const float* from = factors + r * x.width;
      const Vector first = load(from), second = load(from + WIDTH);
      for (int o = 0; o < OUTPUTS; ++o) {
        totals[r][o] += first * weights[o].first;
        totals[r][o] += second * weights[o].second;
      }
    }
  }
};

Tensor row_product(Tensor x, std::vector<Tensor> weights, std::optional<std::vector<Tensor>> biases) {
  for (const Tensor& weight : weights)
    check(x.size(1) == weight.size(1) && x.scalar_type() == weight.scalar_type());
  return multiplied<Product>(x, biases, weights);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("row_product", TORCH_BOX(&row_product));
}
