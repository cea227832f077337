// Products of large matrices, near the rate at which the processor multiplies.
//
// Both factors are copied into the order in which a tile reads them: a slice of the second one that
// fits the second cache, then a few rows of the first at a time. A number of the result is the sum
// of the same products in the same order, whatever the number of threads and of rows.

#pragma once

#include "matmul_factors.h"

namespace addnorm {

constexpr int64_t SLICE = 128 * 1024;  // units of the second factor in the cache

// Memory that a thread keeps, of at least this size.
inline std::vector<float>& of_thread(int64_t size) {
  static thread_local std::vector<float> memory;
  if (int64_t(memory.size()) < size) memory.resize(size);
  return memory;
}

// The product of two factors, plus a bias of each column.
template <typename Arithmetic, typename X, bool X_ADJACENT, typename Y, bool Y_ADJACENT,
          typename Result>
struct Product {
  using A = First<Arithmetic, X, X_ADJACENT>;

  A a;
  const Second<Arithmetic, Y, Y_ADJACENT>& b;
  int64_t inner;
  const float* bias;  // or null
  Result* out;
  float* row_sums;  // of the first factor, whose rows are not adjacent; or null
  std::vector<float> partial = {};

  int64_t rows() const { return a.tiles.rows; }
  int64_t columns() const { return b.columns; }

  int64_t units() const { return (inner + Arithmetic::PER_UNIT - 1) / Arithmetic::PER_UNIT; }

  int64_t passes() const {
    const int64_t longest = Arithmetic::LONGEST / (X_ADJACENT ? 1 : 2);
    return std::max<int64_t>(1, (units() + longest - 1) / longest);
  }

  Pass pass(int64_t i) const {
    const int64_t begin = units() * i / passes();
    return {begin, units() * (i + 1) / passes() - begin, inner};
  }

  // Makes place for sums in float32 between passes, where the result has another type.
  void prepare() {
    if (!std::is_same_v<Result, float> && passes() > 1) partial.resize(rows() * columns());
  }

  // What thread i of n computes.
  void share(int64_t i, int64_t n) {
    const int64_t tiles = a.tiles.count(), panels = (columns() + TILE_COLUMNS - 1) / TILE_COLUMNS;
    if (rows() >= columns()) return part(tiles * i / n, tiles * (i + 1) / n, 0, columns());
    const auto column = [&](int64_t j) {
      return std::min(columns(), panels * j / n * TILE_COLUMNS);
    };
    part(0, tiles, column(i), column(i + 1));
  }

  void part(int64_t tile, int64_t last_tile, int64_t column, int64_t last_column) {
    constexpr int64_t WHOLE = SLICE + TILE_COLUMNS * Arithmetic::LONGEST;
    std::vector<float>& memory = of_thread(WHOLE + GROUP * TILE_UNITS<Arithmetic> + LINE);
    auto* second = memory.data() + (LINE - reinterpret_cast<uintptr_t>(memory.data()) % LINE) / 4;
    auto* first = second + WHOLE;
    for (int64_t p = 0; p < passes(); ++p) {
      const Pass now = pass(p);
      const int64_t fitting = SLICE / std::max<int64_t>(now.units, 1) / TILE_COLUMNS;
      const int64_t width = std::max<int64_t>(1, fitting) * TILE_COLUMNS;
      for (int64_t c = column; c < last_column; c += width) {
        const int64_t end = std::min(last_column, c + width);
        b.copy(now, c, end, second);
        for (int64_t t = tile; t < last_tile; t += A::GROUP) {
          const int64_t last = std::min(last_tile, t + A::GROUP);
          a.copy(now, t, last, first);
          Ahead next = a.lines(now, last, std::min(last_tile, last + A::GROUP));
          for (int64_t i = t; i < last; ++i) {
            const float* from = first + (i - t) * TILE_UNITS<Arithmetic>;
            if (row_sums && c == 0) add_up(now, i, from);
            for (int64_t at = c; at < end; at += TILE_COLUMNS)
              multiply(p, i, at, from, second + (at - c) * now.units, next);
          }
        }
      }
    }
  }

  // The sums over the inner dimension of the rows of a tile.
  void add_up(Pass pass, int64_t tile, const float* first) const {
    const int64_t size = a.tiles.height(tile) * sizeof(float);
    float *to = row_sums + a.tiles.row(tile), sums[WIDTH] = {};
    if (pass.begin) std::memcpy(sums, to, size);
    for (int64_t l = 0; l < WIDTH; l += LANES) {
      Register some = load_register(sums + l);
      for (int64_t i = 0; i < pass.units; ++i)
        some = Arithmetic::add(some, load_register(first + i * WIDTH + l));
      store_register(sums + l, some);
    }
    std::memcpy(to, sums, size);
  }

  // One pass of a tile, whose columns begin at c.
  void multiply(int64_t i, int64_t tile, int64_t c, const float* first, const float* second,
                Ahead& next) {
    alignas(64) float begin[TILE_ROWS * TILE_COLUMNS], end[TILE_ROWS * TILE_COLUMNS];
    const int64_t height = a.tiles.height(tile), width = std::min(TILE_COLUMNS, columns() - c);
    const int64_t at = a.tiles.row(tile) * columns() + c;
    const bool last = i + 1 == passes(), whole = width == TILE_COLUMNS && height % 2 == 0;
    const bool direct = whole && (std::is_same_v<Result, float> || !last);
    float* sums = (partial.empty() ? reinterpret_cast<float*>(out) : partial.data()) + at;
    Sums of = {begin, 0, direct ? sums : end, direct ? columns() : TILE_COLUMNS,
               last ? lines_of(out + at, columns(), width, height)
                    : lines_of(sums, columns(), width, height)};
    if (i == 0) {
      for (int64_t v = 0; v < TILE_COLUMNS; v += WIDTH)
        store(begin + v, bias ? load_some(bias + c, v, width) : Vector{});
    } else if (whole) {
      of.from = sums, of.from_row = columns();
    } else {
      of.from_row = TILE_COLUMNS;
      for (int64_t r = 0; r < height; ++r)
        std::memcpy(begin + r * TILE_COLUMNS, sums + r * columns(), width * sizeof(float));
    }
    tile_for<Arithmetic, X_ADJACENT>(height, width)(pass(i).units, first, second, of, next);
    for (int64_t r = 0; r < height && !direct; ++r)
      for (int64_t v = 0; v < width; v += WIDTH) {
        const Vector x = load(end + r * TILE_COLUMNS + v);
        const int64_t to = r * columns() + v, some = std::min(WIDTH, width - v);
        if (last)
          store(out + at + to, x, some);
        else
          store(sums + to, x, some);
      }
  }
};

}  // namespace addnorm
