// Exponentials and functions made of them, of one register of numbers or of a vector.

#pragma once

#include "vectors.h"

namespace addnorm {

// The larger one of a number and a bound; NaN stays.
inline Register at_least(Register x, float bound) {
#if defined(__AVX512F__)
  return (Register)_mm512_max_ps(_mm512_set1_ps(bound), (__m512)x);
#elif defined(__AVX2__)
  return (Register)_mm256_max_ps(_mm256_set1_ps(bound), (__m256)x);
#else
  return x < bound ? Register{} + bound : x;
#endif
}

// The smaller one of a number and a bound; NaN stays.
inline Register at_most(Register x, float bound) {
#if defined(__AVX512F__)
  return (Register)_mm512_min_ps(_mm512_set1_ps(bound), (__m512)x);
#elif defined(__AVX2__)
  return (Register)_mm256_min_ps(_mm256_set1_ps(bound), (__m256)x);
#else
  return x > bound ? Register{} + bound : x;
#endif
}

// The nearest integers, ties to even, of numbers below 2^22.
inline Register nearest(Register x) {
#ifdef __AVX512F__
  return (Register)_mm512_roundscale_ps((__m512)x, 0);
#else
  const Register round = Register{} + 12582912.f;  // 1.5 · 2^23: its sums are integers
  return (x + round) - round;
#endif
}

// x 2^n for integers n; zero where it would be no normal number, if there are AVX-512 instructions,
// and otherwise for n from -126 on.
inline Register scaled(Register x, Register n) {
#ifdef __AVX512F__
  return (Register)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
  const auto sums = bits_as<RegisterBits>(n + (12582912.f + 127.f));
  return x * bits_as<Register>(sums << 23);
#endif
}

// c0 + c1 x + c2 x² + …, the last coefficient first.
template <typename... Coefficients>
inline Register polynomial(Register x, float last, Coefficients... before) {
  Register sum = Register{} + last;
  ((sum = sum * x + before), ...);
  return sum;
}

// 2^x for -126 ≤ x ≤ 126, within three units in the last place.
inline Register power_of_two(Register x) {
  const Register n = nearest(x);
  const Register p = polynomial(x - n, 1.326472731e-3f, 9.671512991e-3f, 5.550733581e-2f,
                                0.2402224243f, 0.6931470037f, 1.f);
  return scaled(p, n);
}

// exp(x) for x ≤ 0, within two units in the last place; at least the smallest normal number.
inline Register register_exponential(Register x) {
  x = at_least(x, -87.f);
  const Register n = nearest(x * 1.44269504f);
  const Register r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const Register p = polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  return scaled(p * r * r + r + 1.f, n);
}

// exp(-x) for x ≥ 0; zero where it would be no normal number.
inline Register register_decay(Register x) {
#ifdef __AVX512F__
  x = at_most(x, 200.f);
  const Register n = nearest(x * -1.44269504f);
  const Register r = (-x - n * 0.693359375f) + n * 2.12194440e-4f;
  return scaled(polynomial(r, 1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                           5.0000001201e-1f, 1.f, 1.f), n);
#else
  return x > 87.f ? Register{} : register_exponential(-x);
#endif
}

inline Vector exponential(Vector x) { return in_registers(register_exponential, x); }

inline Vector decay(Vector x) { return in_registers(register_decay, x); }

// tanh(x): the series near zero, where 1 - exp would lose digits.
inline Vector hyperbolic_tangent(Vector x) {
  return in_registers(
      [](Register x) {
        const Register size = x < 0.f ? -x : x;
        const Register series = polynomial(x * x, 62.f / 2835, -17.f / 315, 2.f / 15, -1.f / 3, 1.f);
        const Register e = register_exponential(-2.f * size), far = (1.f - e) / (1.f + e);
        return size < 0.25f ? x * series : (x < 0.f ? -far : far);
      },
      x);
}

}  // namespace addnorm
