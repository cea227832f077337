// A tile of a product of large matrices: sums that stay in registers along the inner dimension.
//
// The inner dimension counts units of 32 bits: a float32, or two bfloat16 that are neighbours in
// it, whose products are added in one step. So both types are copied, transposed and read in one
// way.

#pragma once

#include "vectors.h"

namespace addnorm {

// The rows and columns of a tile, as many sums as registers hold.
#ifdef __AVX512F__
constexpr int64_t TILE_ROWS = 14, TILE_COLUMNS = 2 * WIDTH;
#else
constexpr int64_t TILE_ROWS = 6, TILE_COLUMNS = WIDTH;
#endif

typedef Vector Units;  // sixteen of them, as bits

// These bits in each lane.
inline Register everywhere(float bits) {
#if defined(__AVX512F__)
  return (Register)_mm512_set1_ps(bits);
#elif defined(__AVX2__)
  return (Register)_mm256_set1_ps(bits);
#else
  return Register{bits, bits, bits, bits};
#endif
}

// Sixteen numbers or the first n of them, then zeros.
template <typename Number>
inline Vector load_first(const Number* from, int64_t n) {
  return n >= WIDTH ? load(from) : load_some(from, 0, n);
}

struct Float32 {
  static constexpr int64_t PER_UNIT = 1, LONGEST = 512;

  static Register add(Register sums, Register a, Register b) { return sums + a * b; }
  static Register add(Register sums, Register a) { return sums + a; }

  // Units whose numbers, n in all, lie side by side in memory.
  static Units along(const float* from, int64_t n) { return load_first(from, n); }

  // The first numbers of n units; where a unit has two, the second ones are at `second`, or zero.
  static Units across(const float* from, const float*, int64_t n) { return load_first(from, n); }
};

// Numbers are rounded to bfloat16, sums are in float32.
struct Pairs {
  static constexpr int64_t PER_UNIT = 2, LONGEST = 1024;

  static Register low(Register x) { return (Register)((RegisterBits)x << 16); }
  static Register high(Register x) { return (Register)((RegisterBits)x & 0xffff0000); }

  static Register add(Register sums, Register a, Register b) {
#ifdef __AVX512BF16__
    return (Register)_mm512_dpbf16_ps((__m512)sums, (__m512bh)(__m512)a, (__m512bh)(__m512)b);
#else
    return (sums + high(a) * high(b)) + low(a) * low(b);
#endif
  }
  static Register add(Register sums, Register a) { return (sums + low(a)) + high(a); }

  static Halves halves(const float* from, int64_t n) {
    const Vector x = load_first(from, n);
#ifdef __AVX512BF16__
    return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
    BFloat16 numbers[WIDTH];
    store(numbers, x);
    return bits_as<Halves>(numbers);
#endif
  }

  static Halves halves(const BFloat16* from, int64_t n) {
    Halves x = {};
    if (n >= WIDTH)
      std::memcpy(&x, from, sizeof x);
    else if (n > 0)
#ifdef __AVX512BW__
      x = (Halves)_mm256_maskz_loadu_epi16((1u << n) - 1, from);
#else
      std::memcpy(&x, from, n * sizeof(BFloat16));
#endif
    return x;
  }

  template <typename Number>
  static Units along(const Number* from, int64_t n) {
    const Halves both[] = {halves(from, n), n > WIDTH ? halves(from + WIDTH, n - WIDTH) : Halves{}};
    return bits_as<Units>(both);
  }

  template <typename Number>
  static Units across(const Number* from, const Number* second, int64_t n) {
    const Bits first = __builtin_convertvector(halves(from, n), Bits);
    if (!second) return (Units)first;
    return (Units)(first | (__builtin_convertvector(halves(second, n), Bits) << 16));
  }
};

// Lines of memory that are asked for one after another, between other work: the processor drops
// what is asked for in a burst.
struct Ahead {
  const char* line;
  int64_t per_row, jump, rows, left;

  template <int WRITTEN>
  void fetch() {
    if (!rows) return;
    __builtin_prefetch(line, WRITTEN, 3);
    line += LINE;
    if (--left) return;
    line += jump, left = per_row, --rows;
  }
};

template <typename Number>
inline Ahead lines_of(const Number* from, int64_t stride, int64_t width, int64_t rows) {
  const int64_t size = sizeof(Number), lines = (width * size + LINE - 1) / LINE;
  return {reinterpret_cast<const char*>(from), lines, stride * size - lines * LINE, rows, lines};
}

// The layout of what a tile reads of its rows: unit i of row r is at r * ROW + i * NEXT.
template <typename Arithmetic, bool ADJACENT>
struct Layout {
  static constexpr int64_t ROW = ADJACENT ? Arithmetic::LONGEST + WIDTH : 1;
  static constexpr int64_t NEXT = ADJACENT ? 1 : WIDTH;
};

template <typename Arithmetic>
constexpr int64_t TILE_UNITS = WIDTH * Layout<Arithmetic, true>::ROW;

// Where a tile begins its sums and where it leaves them.
struct Sums {
  const float* from;
  int64_t from_row;  // 0: every row begins in the same way
  float* to;
  int64_t to_row;
  Ahead written;
};

// to = from + a b, for R rows and N registers; `b` has TILE_COLUMNS for each unit.
template <typename Arithmetic, bool ADJACENT, int64_t R, int64_t N>
void multiply_tile(int64_t units, const float* a, const float* b, Sums of, Ahead& ahead) {
  using Rows = Layout<Arithmetic, ADJACENT>;
  constexpr int64_t OFTEN = 4;
  Register sums[R][N] = {};
  Ahead next = ahead;
  for (int64_t i = 0; i < units;) {
    next.fetch<0>();
    of.written.fetch<1>();
    const int64_t end = std::min(units, i + OFTEN);
    for (; i < end; ++i, a += Rows::NEXT, b += TILE_COLUMNS) {
      Register columns[N];
#pragma GCC unroll 4
      for (int64_t n = 0; n < N; ++n) columns[n] = load_register(b + n * LANES);
#pragma GCC unroll 14
      for (int64_t r = 0; r < R; ++r) {
        const Register unit = everywhere(a[r * Rows::ROW]);
#pragma GCC unroll 4
        for (int64_t n = 0; n < N; ++n) sums[r][n] = Arithmetic::add(sums[r][n], unit, columns[n]);
      }
    }
  }
  ahead = next;
#pragma GCC unroll 14
  for (int64_t r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int64_t n = 0; n < N; ++n) {
      const Register begun = load_register(of.from + r * of.from_row + n * LANES);
      store_register(of.to + r * of.to_row + n * LANES, sums[r][n] + begun);
    }
}

// The tile for this many rows or one more, and for some columns.
template <typename Arithmetic, bool ADJACENT, int64_t R = TILE_ROWS>
inline auto tile_for(int64_t rows, int64_t columns) {
  if constexpr (R > 2)
    if (rows <= R - 2) return tile_for<Arithmetic, ADJACENT, R - 2>(rows, columns);
  return columns > WIDTH ? multiply_tile<Arithmetic, ADJACENT, R, TILE_COLUMNS / LANES>
                         : multiply_tile<Arithmetic, ADJACENT, R, WIDTH / LANES>;
}

}  // namespace addnorm
