// Rows of x as integers, for products with matrices of four bits.
//
// Each 32 neighbours are rounded for themselves, so that sums of integers are exact.

#pragma once

#include "vectors.h"

namespace addnorm {

constexpr int64_t BLOCK = 16;  // bytes of 32 weights

// The largest integer: all digits are 127, the higher one counts 256.
template <int DIGITS>
constexpr int32_t LARGEST = DIGITS == 1 ? 127 : 127 * 257;

// 32 numbers as integers from -LARGEST to LARGEST, those at even and at odd places.
template <int DIGITS>
struct Rounded {
  int8_t even[DIGITS][BLOCK], odd[DIGITS][BLOCK];  // the lowest digit first

  // Rounds numbers up to this size, and returns the sum of the integers.
  int32_t round(Vector a, Vector b, float size) {
    const Vector evens = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22,
                                                 24, 26, 28, 30);
    const Vector odds = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25,
                                                27, 29, 31);
    return sum(split(even, evens / size) + split(odd, odds / size));
  }

  static Integers split(int8_t (&to)[DIGITS][BLOCK], Vector x) {
    const Integers n = __builtin_convertvector(rounded(x * float(LARGEST<DIGITS>)), Integers);
    const Integers low = DIGITS == 1 ? n : ((n + 128) & 255) - 128;
    store_bytes(to[0], low);
    if (DIGITS == 2) store_bytes(to[DIGITS - 1], (n - low) >> 8);
    return n;
  }
};

// Calls `with(i, a, b, size, part)` for each block of a row of x that is not zero: its place in the
// bytes of the weights, its numbers, the largest size of one, and that as a part of the row's.
//
// Returns the row's largest size; NaN, without a call, if some number is not finite.
template <typename Number, typename With>
inline float for_each_block(const Number* x, int64_t d_in, int64_t bytes, const With& with) {
  Integers sizes = {};
  for (int64_t i = 0; i < d_in; i += WIDTH) sizes = larger(sizes, magnitudes(load_some(x, i, d_in)));
  const float all = largest(sizes);
  for (int64_t i = 0; i < bytes && all > 0; i += BLOCK) {
    const Vector a = load_some(x, 2 * i, d_in), b = load_some(x, 2 * i + WIDTH, d_in);
    const float size = largest(larger(magnitudes(a), magnitudes(b)));
    if (size > 0) with(i, a, b, size, size / all);
  }
  return all;
}

}  // namespace addnorm
