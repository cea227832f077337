// A row of numbers as integers of three digits, whose products with bytes have exact sums.
//
// x[i] ≈ step · (255² d₂ + 255 d₁ + d₀) with digits from -127 to 127: 24 bits, the largest number
// of the row being 8,290,687 steps. That is as exact as float32 is for the largest number.

#pragma once

#include "vectors.h"

namespace addnorm {

constexpr int DIGITS = 3;
constexpr int32_t BASE = 255;
constexpr int32_t LARGEST = 127 * (BASE * BASE + BASE + 1);  // all digits 127; 2 LARGEST + 1 = 255³

inline Integers whole(Wide x) { return __builtin_convertvector(x, Integers); }

// x / 255 without the rest, for x from 0 to 255³.
inline Integers quotient(Integers x) {
  return whole((__builtin_convertvector(x, Wide) + 0.5) * (1. / BASE));
}

struct FixedPoint {
  double step = 0;                     // NaN if some number is not finite
  std::vector<int8_t> digits[DIGITS];  // the lowest first

  // `source(i)` gives the numbers from place i of `width`, a multiple of WIDTH.
  template <typename Source>
  FixedPoint(int64_t width, Source source) {
    Vector sizes = {};
    Integers finite = Integers{} - 1;
    for (int64_t i = 0; i < width; i += WIDTH) {
      const Vector x = source(i), size = x < 0.f ? -x : x;
      sizes = size > sizes ? size : sizes;
      finite &= size <= 3.4028235e38f;
    }
    double largest = 0;
    bool all_finite = true;
    for (int64_t i = 0; i < WIDTH; ++i) {
      largest = std::max(largest, double(sizes[i]));
      all_finite &= finite[i] != 0;
    }
    for (auto& of : digits) of.assign(width, 0);
    step = all_finite ? largest / LARGEST : double(NAN);
    if (!all_finite || largest == 0) return;
    const double scale = LARGEST / largest;
    for (int64_t i = 0; i < width; i += WIDTH) {
      const Wide x = __builtin_convertvector(source(i), Wide);
      const Integers low = whole(x * scale + (LARGEST + 0.5));
      const Integers middle = quotient(low), high = quotient(middle);
      store(0, i, low - middle * BASE);
      store(1, i, middle - high * BASE);
      store(2, i, high);
    }
  }

  void store(int digit, int64_t i, Integers x) {
    typedef int8_t Few __attribute__((vector_size(WIDTH)));
    const Few bytes = __builtin_convertvector(x - 127, Few);
    std::memcpy(&digits[digit][i], &bytes, sizeof bytes);
  }

  Bytes load(int digit, int64_t i) const {
    Bytes x;
    std::memcpy(&x, &digits[digit][i], sizeof x);
    return x;
  }
};

// The number of these digits, or of sums of them.
template <typename Number>
inline Number value(const Number (&of)[DIGITS]) {
  return (of[2] * BASE + of[1]) * BASE + of[0];
}

}  // namespace addnorm
