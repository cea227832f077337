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

struct FixedPoint {
  double step = 0;                     // NaN if some number is not finite
  std::vector<int8_t> digits[DIGITS];  // the lowest first; zeros after the last number

  // Number i has the place `place(i)` among `width`.
  template <typename Number, typename Place>
  FixedPoint(const Number* x, int64_t n, int64_t width, Place place) {
    float largest = 0;
    bool finite = true;
    for (int64_t i = 0; i < n; ++i) {
      const float size = std::fabs(number(x[i]));
      largest = size > largest ? size : largest;
      finite &= size <= 3.4028235e38f;
    }
    for (auto& of : digits) of.assign(width, 0);
    step = finite ? double(largest) / LARGEST : double(NAN);
    if (!finite || largest == 0) return;
    const double scale = LARGEST / double(largest);
    for (int64_t i = 0; i < n; ++i) {
      uint32_t rest = int32_t(std::floor(number(x[i]) * scale + 0.5)) + LARGEST;
      for (auto& of : digits) {
        of[place(i)] = int8_t(int32_t(rest % BASE) - 127);
        rest /= BASE;
      }
    }
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
