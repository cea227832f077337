// x Ŵᵀ + b for a few rows x and some matrices of four bits, each read once for all rows.
//
// Ŵ_ij = s_ig (Q_ij - 8): two integers from 0 to 15 are in a byte, the first in its lower half, and
// each group of neighbours, a multiple of 32, has a scale (`quantize/int4.py`). x is rounded to 16
// bits, or to eight.

#include "int4_panels.h"

namespace {

using namespace addnorm;

constexpr int DIGITS = 2;
constexpr int64_t FEW = 4;           // rows, of which each has its own product with a matrix
constexpr int64_t STEP = 4 * WIDTH;  // bytes
constexpr int64_t REGISTERS = WIDTH / LANES, BYTES = sizeof(RegisterBytes);

// The numbers of a register in float32, each four times.
inline Register four_times(const BFloat16* from) {
#if defined(__AVX2__)
  RegisterBits places;  // of bytes in a quarter; 0xff gives zero
  for (int i = 0; i < LANES; ++i) places[i] = 0x0100ffffu + i / 4 * 0x02020000u;
#if defined(__AVX512BW__)
  int64_t four;
  std::memcpy(&four, from, sizeof four);
  return (Register)_mm512_shuffle_epi8(_mm512_set1_epi64(four), (__m512i)places);
#else
  int32_t two;
  std::memcpy(&two, from, sizeof two);
  return (Register)_mm256_shuffle_epi8(_mm256_set1_epi32(two), (__m256i)places);
#endif
#else
  return Register{} + number(*from);
#endif
}

// The numbers of x that meet 64 bytes, those at even and at odd places.
struct alignas(LINE) Part {
  int8_t even[DIGITS][STEP], odd[DIGITS][STEP];  // the lowest first
  int32_t correction[WIDTH];           // -8 Σ x, in steps of each block
  float steps[WIDTH];                  // of each block, as parts of the row's
};

// One row of x.
struct Point {
  double step;  // of the largest number; NaN if some number is not finite
  std::vector<Part> parts;

  template <typename Number>
  Point(const Number* x, int64_t n, int64_t bytes) : parts((bytes + STEP - 1) / STEP, Part{}) {
    auto keep = [&](int64_t i, Vector a, Vector b, float size, float step) {
      Part& part = parts[i / STEP];
      Rounded<DIGITS> numbers;
      numbers.round(a, b, size);
      for (int digit = 0; digit < DIGITS; ++digit) {
        std::memcpy(part.even[digit] + i % STEP, numbers.even[digit], BLOCK);
        std::memcpy(part.odd[digit] + i % STEP, numbers.odd[digit], BLOCK);
      }
      std::fill_n(part.steps + i % STEP / 4, BLOCK / 4, step);
    };
    step = for_each_block(x, n, bytes, keep) / double(LARGEST<DIGITS>);
    for (Part& part : parts) correct(part);
  }

  static void correct(Part& part) {
    const RegisterBytes eights = RegisterBytes{} + 8;
    for (int64_t i = 0; i < STEP; i += BYTES) {
      const RegisterIntegers sums = -products(part, i, eights, eights);
      std::memcpy(part.correction + i / 4, &sums, sizeof sums);
    }
  }

  // The corrections plus these integers' products with x from byte i, in steps of each block.
  static RegisterIntegers products(const Part& part, int64_t i, RegisterBytes even,
                                   RegisterBytes odd) {
    auto dots = [&](RegisterIntegers sums, int digit) {
      return dot_small(sums, even, load_bytes(part.even[digit] + i), odd,
                       load_bytes(part.odd[digit] + i));
    };
    RegisterIntegers sums;
    std::memcpy(&sums, part.correction + i / 4, sizeof sums);
    return dots(sums, 0) + dots(RegisterIntegers{}, 1) * 256;
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
  static constexpr int ROWS = LANES == 16 ? 4 : 1, OUTPUTS = 4;  // at a time, in registers

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

  template <int ROWS, int OUTPUTS>
  __attribute__((always_inline)) void add(Register (&totals)[ROWS][OUTPUTS][REGISTERS], int64_t row,
                                          int64_t first, int64_t apart, int64_t i,
                                          int64_t n) const {
#pragma GCC unroll 4
    for (int o = 0; o < OUTPUTS; ++o) {
      const uint8_t* weights = values + (first + o * apart) * bytes + i;
      const BFloat16 *all = scale + (first + o * apart) * groups, *scales = all + i / BLOCK;
      to_second_cache(weights + SOON);
      uint8_t some[STEP];
      BFloat16 four[STEP / BLOCK];
      if (n < STEP || !one_block) {
        std::fill_n(four, STEP / BLOCK, BFloat16{});
        for (int64_t j = 0; j * BLOCK < n; ++j) four[j] = all[group_of[i / BLOCK + j]];
        scales = four;
      }
      if (n < STEP) {
        std::fill_n(some, STEP, 0);
        std::memcpy(some, weights, n);
        weights = some;
      }
#pragma GCC unroll 4
      for (int64_t p = 0; p < REGISTERS; ++p) {
        const RegisterBytes both = load_bytes(weights + p * BYTES);
        const RegisterBytes even = both & 15, odd = (RegisterBytes)((RegisterBits)both >> 4) & 15;
        const Register of_blocks = four_times(scales + p * BYTES / BLOCK);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) {
          const Part& part = points[row + r].parts[i / STEP];
          const RegisterIntegers sums = Point::products(part, p * BYTES, even, odd);
          totals[r][o][p] += __builtin_convertvector(sums, Register) *
                             (load_register(part.steps + p * LANES) * of_blocks);
        }
      }
    }
  }

  // Every `apart`-th output from `first`, of the rows from `row`.
  template <int ROWS, int OUTPUTS>
  void block(int64_t row, int64_t first, int64_t apart) const {
    Register totals[ROWS][OUTPUTS][REGISTERS] = {};
    int64_t i = 0;
    for (; i + STEP <= bytes; i += STEP) add(totals, row, first, apart, i, STEP);
    if (i < bytes) add(totals, row, first, apart, i, bytes - i);
    for (int r = 0; r < ROWS; ++r)
      for (int o = 0; o < OUTPUTS; ++o)
        this->put(row + r, first + o * apart,
                  float(sum(bits_as<Vector>(totals[r][o])) * points[row + r].step));
  }
};

template <typename Number>
using InPanels = Panels<Number, DIGITS>;

template <typename Number>
using InBytes = Panels<Number, 1>;

// Numbers of x have two digits of eight bits, or one.
Tensor int4_row_product(Tensor x, std::vector<Tensor> values, std::vector<Tensor> scales,
                        std::optional<std::vector<Tensor>> biases, int64_t digits) {
  check(values.size() == scales.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const Tensor &matrix = values[i], &scale = scales[i];
    const int64_t bytes = matrix.size(1), groups = scale.size(1);
    check(x.size(-1) <= 2 * bytes && scale.size(0) == matrix.size(0));
    check(matrix.scalar_type() == ScalarType::Byte && scale.scalar_type() == ScalarType::BFloat16);
    check(bytes == 0 || (groups > 0 && bytes % (BLOCK * groups) == 0));
  }
  if (digits == 1) return multiplied<InBytes>(x, biases, values, scales);
  check(digits == DIGITS);
  if (x.numel() > FEW * x.size(-1)) return multiplied<InPanels>(x, biases, values, scales);
  return multiplied<Product>(x, biases, values, scales);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("int4_row_product", TORCH_BOX(&int4_row_product));
}
