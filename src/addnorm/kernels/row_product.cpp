// x Wᵀ + b for a few rows x, with weights in float32 or bfloat16 and sums in float32.
//
// Every weight is read once, in the order of memory, for all rows. The result of a row depends
// neither on other rows nor on the number of threads.

#include "vectors.h"

namespace {

using namespace addnorm;

constexpr int64_t STEP = 2 * WIDTH;  // numbers at a time

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

template <typename Number>
struct Product {
  const Number *x, *weight, *bias;  // bias: or null
  Number* y;
  int64_t rows, d_in, d_out, width;  // width: of a row in `wide`
  std::vector<float> wide;           // x in float32, in the order of `load_pair`, then zeros

  void widen() {
    width = (d_in + STEP - 1) / STEP * STEP;
    wide.resize(rows * width);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < width; i += STEP) {
        Number numbers[STEP] = {};
        std::memcpy(numbers, x + row * d_in + i, std::min(STEP, d_in - i) * sizeof(Number));
        const Pair pair = load_pair(numbers);
        store(&wide[row * width + i], pair.first);
        store(&wide[row * width + i + WIDTH], pair.second);
      }
    }
  }

  // The outputs from `first`, of the rows from `row`.
  template <int ROWS, int OUTPUTS>
  void block(int64_t row, int64_t first) {
    Vector totals[ROWS][OUTPUTS] = {};
    const float* factors = wide.data() + row * width;
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
      for (int o = 0; o < OUTPUTS; ++o)
        store(y + (row + r) * d_out + first + o,
              sum(totals[r][o]) + (bias ? number(bias[first + o]) : 0.f));
  }

  template <int ROWS, int OUTPUTS>
  void add(Vector (&totals)[ROWS][OUTPUTS], const float* factors, const Number* w, int64_t stride) {
    Pair weights[OUTPUTS];
    for (int o = 0; o < OUTPUTS; ++o) {
      weights[o] = load_pair(w + o * stride);
      prefetch(w + (o + OUTPUTS) * stride);
    }
    for (int r = 0; r < ROWS; ++r) {
      const Vector first = load(factors + r * width), second = load(factors + r * width + WIDTH);
      for (int o = 0; o < OUTPUTS; ++o) {
        totals[r][o] += first * weights[o].first;
        totals[r][o] += second * weights[o].second;
      }
    }
  }

  template <int OUTPUTS>
  void outputs(int64_t first) {
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) block<4, OUTPUTS>(row, first);
    for (; row < rows; ++row) block<1, OUTPUTS>(row, first);
  }

  void run() {
    widen();
    torch::stable::parallel_for(0, d_out / 4, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) outputs<4>(4 * i);
    });
    for (int64_t o = d_out / 4 * 4; o < d_out; ++o) outputs<1>(o);
  }
};

template <typename Number>
Tensor multiplied(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const int64_t shape[] = {x.size(0), weight.size(0)};
  Tensor y = torch::stable::new_empty(x, shape);
  Product<Number>{
      .x = pointer<Number>(x),
      .weight = pointer<Number>(weight),
      .bias = pointer<Number>(bias),
      .y = static_cast<Number*>(y.data_ptr()),
      .rows = x.size(0),
      .d_in = weight.size(1),
      .d_out = weight.size(0),
  }.run();
  return y;
}

Tensor row_product(Tensor x, Tensor weight, std::optional<Tensor> bias) {
  check(x.size(1) == weight.size(1) && x.scalar_type() == weight.scalar_type());
  auto with = x.scalar_type() == ScalarType::BFloat16 ? multiplied<BFloat16> : multiplied<float>;
  return with(x, weight, bias);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("row_product", TORCH_BOX(&row_product));
}
