// x Ŵᵀ + b for a few rows x and some matrices of four bits, each read once for all rows.
//
// Ŵ_ij = s_ig (Q_ij - 8): two integers from 0 to 15 are in a byte, the first in its lower half, and
// each group of neighbours, a multiple of 32, has a scale (`quantize/int4.py`). x is rounded to 16
// bits, each 32 neighbours for themselves, so that the sums of integers are exact.

#include "row_product.h"

namespace {

using namespace addnorm;

constexpr int64_t STEP = 4 * WIDTH;  // bytes
constexpr int64_t BLOCK = 16;        // bytes that `dot_small` adds up to four numbers
constexpr int64_t BLOCKS = STEP / BLOCK;
constexpr int32_t LARGEST = 127 * 257;  // 256 · 127 + 127

// Four numbers in float32, each four times.
inline Vector four_times(const BFloat16* from) {
  uint64_t four;
  std::memcpy(&four, from, sizeof four);
#if defined(__AVX2__)
  Bits places;  // of bytes in a quarter; 0xff gives zero
  for (int i = 0; i < WIDTH; ++i) places[i] = 0x0100ffffu + i / 4 * 0x02020000u;
#if defined(__AVX512BW__)
  return (Vector)_mm512_shuffle_epi8(_mm512_set1_epi64(four), (__m512i)places);
#else
  __m256i x[2];
  std::memcpy(x, &places, sizeof x);
  for (__m256i& half : x) half = _mm256_shuffle_epi8(_mm256_set1_epi64x(four), half);
  return bits_as<Vector>(x);
#endif
#else
  Vector x;
  for (int i = 0; i < WIDTH; ++i) x[i] = number(BFloat16{uint16_t(four >> i / 4 * 16)});
  return x;
#endif
}

// The numbers of x that meet 64 bytes, those at even and at odd places: 256 high + low steps.
struct Part {
  Bytes even[2], odd[2];  // low, high
  Integers correction;    // -8 Σ x, in steps
  Vector steps;           // of each block, as parts of the row's
};

// One row of x.
struct Point {
  double step;  // of the largest number; NaN if some number is not finite
  std::vector<Part> parts;

  template <typename Number>
  Point(const Number* x, int64_t n, int64_t bytes) : parts((bytes + STEP - 1) / STEP) {
    Integers sizes = {};
    for (int64_t i = 0; i < n; i += WIDTH) sizes = larger(sizes, magnitudes(load_some(x, i, n)));
    const float size = largest(sizes);
    step = size / double(LARGEST);
    if (!(size > 0)) return;
    for (int64_t i = 0; i < bytes; i += BLOCK)
      round(parts[i / STEP], i % STEP / BLOCK, load_some(x, 2 * i, n),
            load_some(x, 2 * i + WIDTH, n), size);
    for (Part& part : parts) correct(part);
  }

  // The numbers of a block.
  static void round(Part& part, int64_t block, Vector a, Vector b, float row) {
    const float size = largest(larger(magnitudes(a), magnitudes(b)));
    for (int i = 0; i < 4; ++i) part.steps[4 * block + i] = size / row;
    if (size == 0) return;
    const Vector even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24,
                                                26, 28, 30);
    const Vector odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25,
                                               27, 29, 31);
    split(part.even, block, even / size);
    split(part.odd, block, odd / size);
  }

  // The digits of numbers from -1 to 1.
  static void split(Bytes (&to)[2], int64_t block, Vector x) {
    const Integers n = __builtin_convertvector(rounded(x * float(LARGEST)), Integers);
    const Integers low = ((n + 128) & 255) - 128;
    store_bytes(reinterpret_cast<int8_t*>(&to[0]) + block * BLOCK, low);
    store_bytes(reinterpret_cast<int8_t*>(&to[1]) + block * BLOCK, (n - low) >> 8);
  }

  static void correct(Part& part) {
    const Bytes eights = Bytes{} + 8;
    part.correction = -products(part, Integers{}, eights, eights);
  }

  // Sums of these integers' products with the numbers of x, in steps of each block.
  static Integers products(const Part& part, Integers sums, Bytes even, Bytes odd) {
    const Integers high = dot_small(Integers{}, even, part.even[1], odd, part.odd[1]);
    return dot_small(sums, even, part.even[0], odd, part.odd[0]) + high * 256;
  }
};

struct Points : std::vector<Point> {
  template <typename Number>
  Points(const Number* x, int64_t rows, int64_t d_in, int64_t bytes) {
    for (int64_t row = 0; row < rows; ++row) emplace_back(x + row * d_in, d_in, bytes);
  }
};

template <typename Number>
struct Product : Columns<Number> {
  using Factors = Points;
  using Weight = uint8_t;
  static constexpr int ROWS = 4, OUTPUTS = 4;  // at a time

  const Points& points;  // of each row of x
  const uint8_t* values;
  const BFloat16* scale;
  int64_t bytes, groups;
  bool one_block;                 // whether this is the size of groups
  std::vector<int32_t> group_of;  // of each block

  Product(const Columns<Number>& columns, const Points& points, const Tensor& values,
          const Tensor& scale)
      : Columns<Number>(columns), points(points), values(pointer<uint8_t>(values)),
        scale(pointer<BFloat16>(scale)), bytes(values.size(1)), groups(scale.size(1)),
        one_block(bytes == groups * BLOCK) {
    for (int64_t i = 0; i < bytes; i += BLOCK) group_of.push_back(i / (bytes / groups));
  }

  // The scales of the blocks from byte i, of which n bytes exist.
  Vector scales(int64_t output, int64_t i, int64_t n) const {
    const BFloat16* from = scale + output * groups;
    const int64_t block = i / BLOCK;
    if (n == STEP && one_block) return four_times(from + block);
    BFloat16 four[BLOCKS] = {};
    for (int64_t j = 0; j * BLOCK < n; ++j) four[j] = from[group_of[block + j]];
    return four_times(four);
  }

  template <int ROWS, int OUTPUTS>
  __attribute__((always_inline)) void add(Vector (&totals)[ROWS][OUTPUTS], int64_t row,
                                          int64_t first, int64_t apart, int64_t i,
                                          int64_t n) const {
#pragma GCC unroll 4
    for (int o = 0; o < OUTPUTS; ++o) {
      const uint8_t* from = values + (first + o * apart) * bytes + i;
      const Bytes both = load_bytes(from, n);
      prefetch(from);
      const Bytes even = both & 15, odd = (Bytes)((Bits)both >> 4) & 15;
      const Vector scale = scales(first + o * apart, i, n);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; ++r) {
        const Part& part = points[row + r].parts[i / STEP];
        const Integers sums = Point::products(part, part.correction, even, odd);
        totals[r][o] += __builtin_convertvector(sums, Vector) * (part.steps * scale);
      }
    }
  }

  // Every `apart`-th output from `first`, of the rows from `row`.
  template <int ROWS, int OUTPUTS>
  void block(int64_t row, int64_t first, int64_t apart) const {
    Vector totals[ROWS][OUTPUTS] = {};
    int64_t i = 0;
    for (; i + STEP <= bytes; i += STEP) add(totals, row, first, apart, i, STEP);
    if (i < bytes) add(totals, row, first, apart, i, bytes - i);
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int o = 0; o < OUTPUTS; ++o)
        this->put(row + r, first + o * apart, float(sum(totals[r][o]) * points[row + r].step));
  }
};

Tensor int4_row_product(Tensor x, std::vector<Tensor> values, std::vector<Tensor> scales,
                        std::optional<std::vector<Tensor>> biases) {
  check(values.size() == scales.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const Tensor &matrix = values[i], &scale = scales[i];
    const int64_t bytes = matrix.size(1), groups = scale.size(1);
    check(x.size(-1) <= 2 * bytes && scale.size(0) == matrix.size(0));
    check(matrix.scalar_type() == ScalarType::Byte && scale.scalar_type() == ScalarType::BFloat16);
    check(bytes == 0 || (groups > 0 && bytes % (BLOCK * groups) == 0));
  }
  return multiplied<Product>(x, biases, values, scales);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("int4_row_product", TORCH_BOX(&int4_row_product));
}
