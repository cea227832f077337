// The mask of dropout as a pure function of a seed, the row and the column.

#pragma once

#include "vectors.h"

namespace addnorm {

// 64 well-mixed bits of a number (splitmix64: Steele et al. 2014).
inline uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The factors of a row: 1 / (1 - p) for numbers that are kept, zero for the others.
class DropoutMask {
 public:
  DropoutMask(double p, int64_t seed, int64_t row) {
    const int64_t dropped = std::lround(p * 65536);
    below = uint32_t(dropped);
    factor = dropped < 65536 ? float(65536. / (65536 - dropped)) : 0.f;
    const uint64_t key = mixed(mixed(uint64_t(seed)) + uint64_t(row));
    first = uint32_t(key);
    second = uint32_t(key >> 32);
  }

  // Applies the mask to up to 2 WIDTH numbers, of which one hash decides two.
  void apply(int64_t column, Vector (&x)[2]) const {
    if (!below) return;
    Bits bits = Bits{} + (first + uint32_t(column));
    for (int i = 0; i < WIDTH; ++i) bits[i] += i;
    bits = (bits ^ bits >> 16) * 0x21f0aaadu;
    bits = (bits ^ second ^ bits >> 15) * 0x735a2d97u;
    bits ^= bits >> 15;
    x[0] = (bits & 0xffff) < below ? Vector{} : x[0] * factor;
    x[1] = (bits >> 16) < below ? Vector{} : x[1] * factor;
  }

 private:
  uint32_t below, first, second;
  float factor;
};

}  // namespace addnorm
