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
    Bits columns = Bits{} + (first + uint32_t(column));
    for (int i = 0; i < WIDTH; ++i) columns[i] += i;
    const Vector places = bits_as<Vector>(columns);
    auto hash = [this](Register places) {
      RegisterBits bits = bits_as<RegisterBits>(places);
      bits = (bits ^ bits >> 16) * 0x21f0aaadu;
      bits = (bits ^ second ^ bits >> 15) * 0x735a2d97u;
      return bits ^ bits >> 15;
    };
    auto even = [&](Register x, Register places) {
      return (hash(places) & 0xffff) < below ? Register{} : x * factor;
    };
    auto odd = [&](Register x, Register places) {
      return hash(places) >> 16 < below ? Register{} : x * factor;
    };
    x[0] = in_registers(even, x[0], places);
    x[1] = in_registers(odd, x[1], places);
  }

 private:
  uint32_t below, first, second;
  float factor;
};

}  // namespace addnorm
