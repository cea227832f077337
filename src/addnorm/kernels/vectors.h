// Sixteen numbers at a time: the compiler splits them for narrower processors.
//
// What compilers do not find by themselves is written for AVX2, AVX-512, its VNNI, and NEON, each
// beside plain C++, which ADDNORM_SCALAR chooses. All paths of the integers give the same numbers.

#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON) && !defined(ADDNORM_SCALAR)
#include <arm_neon.h>
#define ADDNORM_NEON
#endif

namespace addnorm {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t WIDTH = 16;

typedef float Vector __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Integers __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Bits __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t Halves __attribute__((vector_size(2 * WIDTH)));
typedef double Wide __attribute__((vector_size(8 * WIDTH)));
typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourIntegers __attribute__((vector_size(16)));

// The numbers of a register. What compilers split badly is computed by `in_registers`.
#if defined(__AVX512F__)
constexpr int64_t LANES = 16;
#elif defined(__AVX2__)
constexpr int64_t LANES = 8;
#else
constexpr int64_t LANES = 4;
#endif
typedef float Register __attribute__((vector_size(4 * LANES)));
typedef uint32_t RegisterBits __attribute__((vector_size(4 * LANES)));
typedef int32_t RegisterIntegers __attribute__((vector_size(4 * LANES)));
typedef int8_t RegisterBytes __attribute__((vector_size(4 * LANES)));

struct BFloat16 {
  uint16_t bits;
};

// Bits as another type of the same size.
template <typename To, typename From>
inline To bits_as(const From& x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

inline Register load_register(const float* from) {
  Register x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void store_register(float* to, Register x) { std::memcpy(to, &x, sizeof x); }

struct Parts {
  Register of[WIDTH / LANES];
};

// The results of a function of registers, for all numbers of some vectors.
template <typename Function, typename... Vectors>
inline Vector in_registers(const Function& f, const Vectors&... x) {
  auto of_parts = [&](const auto&... parts) {
    Parts y;
#pragma GCC unroll 4
    for (int64_t i = 0; i < WIDTH / LANES; ++i) y.of[i] = f(parts.of[i]...);
    return bits_as<Vector>(y);
  };
  return of_parts(bits_as<Parts>(x)...);
}

constexpr int64_t LINE = 64;

// A line that is read soon: to the second cache, for few can be on their way to the first at a time.
//
// GCC drops calls of functions that only prefetch, unless they are always inline.
__attribute__((always_inline)) inline void to_second_cache(const void* from) {
  __builtin_prefetch(from, 0, 2);
}

inline Vector widened(Vector x) { return x; }

inline Vector widened(Halves x) {
#ifdef __AVX512F__  // one instruction, which compilers do not find
  return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16);
#elif defined(__AVX2__)
  __m128i halves[2];
  std::memcpy(halves, &x, sizeof x);
  __m256i numbers[2];
  for (int i = 0; i < 2; ++i) numbers[i] = _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves[i]), 16);
  return bits_as<Vector>(numbers);
#else
  return (Vector)(__builtin_convertvector(x, Bits) << 16);
#endif
}

template <typename Number>
using Loaded = std::conditional_t<std::is_same_v<Number, float>, Vector, Halves>;

template <typename Number>
inline Vector load(const Number* from) {
  Loaded<Number> x;
  std::memcpy(&x, from, sizeof x);
  return widened(x);
}

// The first n numbers, then zeros.
template <typename Number>
inline Vector load(const Number* from, int64_t n) {
  if (n == WIDTH) return load(from);
#ifdef __AVX512F__
  if constexpr (sizeof(Number) == sizeof(float))
    return (Vector)_mm512_maskz_loadu_ps((1u << n) - 1, from);
  else
    return widened((Halves)_mm256_maskz_loadu_epi16((1u << n) - 1, from));
#endif
  Loaded<Number> x = {};
  std::memcpy(&x, from, n * sizeof(Number));
  return widened(x);
}

// The numbers from i on, of n, then zeros.
template <typename Number>
inline Vector load_some(const Number* from, int64_t i, int64_t n) {
  if (i + WIDTH <= n) return load(from + i);
  return i < n ? load(from + i, n - i) : Vector{};
}

inline void store(float* to, Vector x) {
  const auto parts = bits_as<Parts>(x);
#pragma GCC unroll 4
  for (int64_t i = 0; i < WIDTH / LANES; ++i) store_register(to + i * LANES, parts.of[i]);
}

inline void store(float* to, float x) { *to = x; }

inline void store(BFloat16* to, float x) {  // to the nearest, ties to even
  const uint32_t bits = bits_as<uint32_t>(x);
  to->bits = x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// The bits of bfloat16, to the nearest, ties to even.
inline RegisterBits rounded_to_halves(Register x) {
  const RegisterBits bits = bits_as<RegisterBits>(x), sums = bits + (0x7fff + (bits >> 16 & 1));
  return x != x ? RegisterBits{} + 0x7fc0 : sums >> 16;
}

inline void store(BFloat16* to, Vector x) {
#if defined(__AVX512BF16__)  // numbers below the normal ones are zero
  const __m256bh halves = _mm512_cvtneps_pbh((__m512)x);
#elif defined(__AVX512F__)
  const Halves halves = __builtin_convertvector(rounded_to_halves(x), Halves);
#elif defined(__AVX2__)
  const auto parts = bits_as<Parts>(x);
  auto rounded = [&](int i) { return (__m256i)rounded_to_halves(parts.of[i]); };
  const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded(0), rounded(1)), 0xd8);
#else
  const Vector bits = in_registers([](Register part) { return (Register)rounded_to_halves(part); }, x);
  const Halves halves = __builtin_convertvector((Bits)bits, Halves);
#endif
  std::memcpy(to, &halves, sizeof halves);
}

// The first n of these numbers.
template <typename Number>
inline void store(Number* to, Vector x, int64_t n) {
  if (n == WIDTH) return store(to, x);
  Number numbers[WIDTH];
  store(numbers, x);
  std::memcpy(to, numbers, n * sizeof(Number));
}

#ifdef __AVX512F__
// Where `transpose` takes columns from, of two rows side by side.
inline __m512i load_columns(int step, int odd) {
  static constexpr auto TABLE = [] {
    std::array<std::array<std::array<int32_t, WIDTH>, 2>, WIDTH> table = {};
    for (int step = 1; step < WIDTH; step *= 2)
      for (int c = 0; c < WIDTH; ++c) {
        table[step][0][c] = c & step ? c - step + WIDTH : c;
        table[step][1][c] = table[step][0][c] + step;
      }
    return table;
  }();
  return _mm512_loadu_si512(TABLE[step][odd].data());
}
#endif

// Exchanges the rows and columns of a square of numbers.
inline void transpose(Vector (&square)[WIDTH]) {
#ifdef __AVX512F__
#pragma GCC unroll 4
  for (int step = WIDTH / 2; step; step /= 2) {
#pragma GCC unroll 16
    for (int r = 0; r < WIDTH; ++r) {
      if (r & step) continue;
      const __m512 a = (__m512)square[r], b = (__m512)square[r + step];
      const auto even = load_columns(step, 0), odd = load_columns(step, 1);
      square[r] = (Vector)_mm512_permutex2var_ps(a, even, b);
      square[r + step] = (Vector)_mm512_permutex2var_ps(a, odd, b);
    }
  }
#else
  float rows[WIDTH][WIDTH], columns[WIDTH][WIDTH];
  std::memcpy(rows, square, sizeof rows);
  for (int64_t r = 0; r < WIDTH; ++r)
    for (int64_t c = 0; c < WIDTH; ++c) columns[c][r] = rows[r][c];
  std::memcpy(square, columns, sizeof columns);
#endif
}

inline RegisterBytes load_bytes(const void* from) {
  RegisterBytes x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

// The first n bytes, then zeros.
inline RegisterBytes load_bytes(const void* from, int64_t n) {
  RegisterBytes x = {};
  std::memcpy(&x, from, n);
  return x;
}

// Sixteen integers as bytes.
inline void store_bytes(int8_t* to, Integers x) {
  typedef int8_t Few __attribute__((vector_size(WIDTH)));
  const Few bytes = __builtin_convertvector(x, Few);
  std::memcpy(to, &bytes, sizeof bytes);
}

inline float number(float x) { return x; }

inline float number(BFloat16 x) { return bits_as<float>(uint32_t(x.bits) << 16); }

// The sizes of numbers, whose order is that of their bits; those that are not finite are largest.
inline Integers magnitudes(Vector x) { return (Integers)x & 0x7fffffff; }

// The larger of two numbers each; NaN only if the second is.
template <typename Numbers>
inline Numbers larger(Numbers a, Numbers b) {
  return a > b ? a : b;
}

// What is left of integers when the halves of them are combined, again and again.
template <typename Combine>
inline int32_t folded(Integers x, Combine combine) {
  FourIntegers parts[WIDTH / 4];
  std::memcpy(parts, &x, sizeof x);
  FourIntegers four = combine(combine(parts[0], parts[1]), combine(parts[2], parts[3]));
  four = combine(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  return combine(four, __builtin_shufflevector(four, four, 1, 0, 3, 2))[0];
}

inline int32_t sum(Integers x) {
  return folded(x, [](FourIntegers a, FourIntegers b) { return a + b; });
}

// The largest number of these bits; NaN if one is not finite.
inline float largest(Integers magnitudes) {
  const int32_t bits = folded(magnitudes, larger<FourIntegers>);
  return bits < 0x7f800000 ? bits_as<float>(bits) : NAN;
}

// The nearest integers, ties to even, of numbers below 2^22.
inline Vector rounded(Vector x) {
  const Vector round = Vector{} + 12582912.f;  // 1.5 · 2^23: its sums are integers
  return (x + round) - round;
}

inline float sum(Vector x) {
  Eight eight[2];
  std::memcpy(eight, &x, sizeof x);
  eight[0] += eight[1];
  Four four[2];
  std::memcpy(four, eight, sizeof four);
  four[0] += four[1];
  return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

// The sums of four vectors: each step adds halves of two of them, so that few lanes are exchanged.
template <typename Numbers>
inline auto sums(const Numbers& a, const Numbers& b, const Numbers& c, const Numbers& d) {
  auto pairs = [](const Numbers& x, const Numbers& y) {
    return __builtin_shufflevector(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29) +
           __builtin_shufflevector(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  };
  const Numbers ab = pairs(a, b), cd = pairs(c, d);
  const Numbers all =
      __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
      __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  typedef __typeof__(all[0] + 0) Quarter __attribute__((vector_size(16)));
  Quarter quarters[4];
  std::memcpy(quarters, &all, sizeof all);
  return (quarters[0] + quarters[2]) + (quarters[1] + quarters[3]);
}

// The sums of four registers of integers.
inline FourIntegers sums_of_registers(RegisterIntegers a, RegisterIntegers b, RegisterIntegers c,
                                      RegisterIntegers d) {
#ifdef __AVX512F__
  return sums(a, b, c, d);
#else
  auto four = [](const RegisterIntegers& x) {
    FourIntegers parts[LANES / 4], total = {};
    std::memcpy(parts, &x, sizeof x);
    for (const FourIntegers& part : parts) total += part;
    return total;
  };
  auto pairs = [](FourIntegers x, FourIntegers y) {
    return __builtin_shufflevector(x, y, 0, 2, 4, 6) + __builtin_shufflevector(x, y, 1, 3, 5, 7);
  };
  return pairs(pairs(four(a), four(b)), pairs(four(c), four(d)));
#endif
}

inline double sum(Wide x) {
  typedef double Half __attribute__((vector_size(64)));
  Half halves[2];
  std::memcpy(halves, &x, sizeof x);
  halves[0] += halves[1];
  typedef double Quarter __attribute__((vector_size(32)));
  Quarter quarters[2];
  std::memcpy(quarters, halves, sizeof quarters);
  quarters[0] += quarters[1];
  return (quarters[0][0] + quarters[0][2]) + (quarters[0][1] + quarters[0][3]);
}

// What `dot` wants added to the numbers of its first factor, unless none of them is negative.
#ifdef __AVX512VNNI__
constexpr int SHIFT = 128;
#else
constexpr int SHIFT = 0;
#endif

// Each sum plus the products of four neighbours in `a` and in `b`.
//
// `a` has any bytes plus SHIFT, `b` numbers from -127 to 127: then no sum of two products
// overflows sixteen bits.
inline RegisterIntegers dot(RegisterIntegers sums, RegisterBytes a, RegisterBytes b) {
#if defined(__AVX512VNNI__)
  return (RegisterIntegers)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  const __mmask64 negative = _mm512_movepi8_mask((__m512i)a);
  const __m512i zero = _mm512_setzero_si512();
  const __m512i signs = _mm512_mask_sub_epi8((__m512i)b, negative, zero, (__m512i)b);
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8((__m512i)a), signs);
  return sums + (RegisterIntegers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
  const __m256i signs = _mm256_sign_epi8((__m256i)b, (__m256i)a);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)a), signs);
  return sums + (RegisterIntegers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(ADDNORM_NEON)
  const int8x16_t x = bits_as<int8x16_t>(a), y = bits_as<int8x16_t>(b);
  const int16x8_t first = vmull_s8(vget_low_s8(x), vget_low_s8(y));
  const int16x8_t last = vmull_s8(vget_high_s8(x), vget_high_s8(y));
  return bits_as<RegisterIntegers>(vpadalq_s16(bits_as<int32x4_t>(sums), vpaddq_s16(first, last)));
#else
  for (int64_t i = 0; i < 4 * LANES; ++i) sums[i / 4] += a[i] * b[i];
  return sums;
#endif
}

// As `dot` of both pairs, with integers from 0 to 15 as first factors and any bytes as second.
inline RegisterIntegers dot_small(RegisterIntegers sums, RegisterBytes a, RegisterBytes x,
                                  RegisterBytes b, RegisterBytes y) {
#if defined(__AVX512BW__) && !defined(__AVX512VNNI__)
  const __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16((__m512i)a, (__m512i)x),
                                         _mm512_maddubs_epi16((__m512i)b, (__m512i)y));
  return sums + (RegisterIntegers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16((__m256i)a, (__m256i)x),
                                         _mm256_maddubs_epi16((__m256i)b, (__m256i)y));
  return sums + (RegisterIntegers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  return dot(dot(sums, a, x), b, y);
#endif
}

template <typename Number>
inline const Number* pointer(const Tensor& of) {
  return static_cast<const Number*>(of.data_ptr());
}

template <typename Number>
inline const Number* pointer(const std::optional<Tensor>& of) {
  return of ? pointer<Number>(*of) : nullptr;
}

// Throws unless the sizes and types of arguments fit, before memory beyond them is read.
inline void check(bool fits) {
  if (!fits) throw std::runtime_error("the sizes or types of the arguments do not fit together");
}

// Throws unless both have the same sizes.
inline void check_same_sizes(const Tensor& x, const Tensor& y) {
  check(x.dim() == y.dim());
  for (int64_t axis = 0; axis < x.dim(); ++axis) check(x.size(axis) == y.size(axis));
}

// Throws unless these are numbers of one of these types, one after another in memory.
inline void check_numbers(const Tensor& x, std::initializer_list<ScalarType> types) {
  check(x.is_contiguous() && std::find(types.begin(), types.end(), x.scalar_type()) != types.end());
}

}  // namespace addnorm
