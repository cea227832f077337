// x Ŵᵀ + b for a few rows x and weights of four bits, each read once for all rows.
//
// Ŵ_ij = s_ig (Q_ij - 8): two integers from 0 to 15 are in a byte, the first in its lower half, and
// each group of neighbours, a multiple of 32, has a scale (`quantize/int4.py`). x is rounded to 24
// bits (`fixed_point.h`), so that the sums of a group are exact.

#include "fixed_point.h"

namespace {

using namespace addnorm;

constexpr int64_t STEP = 4 * WIDTH;  // bytes
constexpr int64_t BLOCK = 16;        // bytes that `dot` adds up to four numbers
constexpr int OUTPUTS = 4;           // at a time

// Four numbers in float32, each four times.
inline Vector four_times(const BFloat16* from) {
  uint64_t four;
  std::memcpy(&four, from, sizeof four);
#ifdef __AVX512BW__
  Bits places;  // of bytes in a quarter; 0xff gives zero
  for (int i = 0; i < WIDTH; ++i) places[i] = 0x0100ffffu + i / 4 * 0x02020000u;
  return (Vector)_mm512_shuffle_epi8(_mm512_set1_epi64(four), (__m512i)places);
#else
  Vector x;
  for (int i = 0; i < WIDTH; ++i) x[i] = number(BFloat16{uint16_t(four >> i / 4 * 16)});
  return x;
#endif
}

// One row of x: its numbers at even places, and those at odd places.
struct Point {
  FixedPoint of;
  int64_t width;                      // of either half
  std::vector<Integers> corrections;  // 8 Σ q, of each step

  template <typename Number>
  Point(const Number* x, int64_t n, int64_t width)
      : of(2 * width, [=](int64_t i) { return half(x, i % width * 2, i / width, n); }), width(width) {
    const Bytes eights = Bytes{} + 8;
    for (int64_t i = 0; i < width; i += STEP) corrections.push_back(sums(eights, eights, i));
  }

  // Every second of the next numbers of n, from the first or the second.
  template <typename Number>
  static Vector half(const Number* x, int64_t i, bool second, int64_t n) {
    const Vector a = load_some(x, i, n), b = load_some(x, i + WIDTH, n);
    if (second)
      return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  }

  // The products of the integers in these bytes, from place i, in groups of eight.
  Integers sums(Bytes even, Bytes odd, int64_t i) const {
    Integers totals[DIGITS];
    for (int k = 0; k < DIGITS; ++k)
      totals[k] = dot(dot(Integers{}, even, of.load(k, i)), odd, of.load(k, width + i));
    return value(totals);
  }
};

template <typename Number>
struct Product {
  const Number *x, *bias;  // bias: or null
  const uint8_t* values;
  const BFloat16* scale;
  Number* y;
  int64_t rows, d_in, d_out, bytes, groups;
  bool one_block;                 // whether this is the size of groups
  std::vector<Point> points;      // of each row of x
  std::vector<int32_t> group_of;  // of each block

  void prepare() {
    for (int64_t i = 0; i < bytes; i += BLOCK) group_of.push_back(i / (bytes / groups));
    one_block = bytes == groups * BLOCK;
    const int64_t width = (bytes + STEP - 1) / STEP * STEP;
    for (int64_t row = 0; row < rows; ++row) points.emplace_back(x + row * d_in, d_in, width);
  }

  // The scales of four blocks from byte i, of which n bytes exist.
  Vector scales(int64_t output, int64_t i, int64_t n) const {
    const BFloat16* from = scale + output * groups;
    const int64_t block = i / BLOCK;
    if (n == STEP && one_block) return four_times(from + block);
    BFloat16 four[STEP / BLOCK] = {};
    for (int64_t j = 0; j * BLOCK < n; ++j) four[j] = from[group_of[block + j]];
    return four_times(four);
  }

  template <int N>
  __attribute__((always_inline)) void add(Vector (&totals)[N], const Point& point, int64_t first,
                                          int64_t i, int64_t n) {
    for (int o = 0; o < N; ++o) {
      Bits both = {};
      const uint8_t* from = values + (first + o) * bytes + i;
      std::memcpy(&both, from, n);
      prefetch(from + N * bytes);
      const Bytes even = (Bytes)(both & 0x0f0f0f0fu), odd = (Bytes)(both >> 4 & 0x0f0f0f0fu);
      const Integers sums = point.sums(even, odd, i) - point.corrections[i / STEP];
      totals[o] += __builtin_convertvector(sums, Vector) * scales(first + o, i, n);
    }
  }

  // The outputs from `first`, of all rows.
  template <int N>
  void outputs(int64_t first) {
    for (int64_t row = 0; row < rows; ++row) {
      const Point& point = points[row];
      Vector totals[N] = {};
      int64_t i = 0;
      for (; i + STEP <= bytes; i += STEP) add<N>(totals, point, first, i, STEP);
      if (i < bytes) add<N>(totals, point, first, i, bytes - i);
      for (int o = 0; o < N; ++o)
        store(y + row * d_out + first + o,
              float(sum(totals[o]) * point.of.step) + (bias ? number(bias[first + o]) : 0.f));
    }
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
      .values = pointer<uint8_t>(values),
      .scale = pointer<BFloat16>(scale),
      .y = static_cast<Number*>(y.data_ptr()),
      .rows = x.size(0),
      .d_in = x.size(1),
      .d_out = values.size(0),
      .bytes = values.size(1),
      .groups = scale.size(1),
  }.run();
  return y;
}

Tensor int4_row_product(Tensor x, Tensor values, Tensor scale, std::optional<Tensor> bias) {
  check(x.size(1) <= 2 * values.size(1) && scale.size(0) == values.size(0));
  const int64_t bytes = values.size(1), groups = scale.size(1);
  check(bytes == 0 || (groups > 0 && bytes % (BLOCK * groups) == 0));
  auto with = x.scalar_type() == ScalarType::BFloat16 ? multiplied<BFloat16> : multiplied<float>;
  return with(x, values, scale, bias);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("int4_row_product", TORCH_BOX(&int4_row_product));
}
