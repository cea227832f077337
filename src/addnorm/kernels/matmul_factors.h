// The factors of a product of large matrices, copied into the order in which a tile reads them.

#pragma once

#include "matmul_tile.h"

namespace addnorm {

constexpr int64_t GROUP = 4;  // tiles that are copied at a time where their rows are not adjacent

// A part of the inner dimension, in units, whose numbers end at `inner`.
struct Pass {
  int64_t begin, units, inner;
};

// Tiles of almost equally many rows, an even number but for the last.
struct Tiles {
  int64_t rows;

  int64_t count() const { return (rows + TILE_ROWS - 1) / TILE_ROWS; }
  int64_t row(int64_t tile) const { return std::min(rows, (rows + 1) / 2 * tile / count() * 2); }
  int64_t height(int64_t tile) const { return row(tile + 1) - row(tile); }
};

// The first factor. If ADJACENT, numbers of the inner dimension lie side by side, and `stride`
// leads to the next row; else the reverse.
template <typename Arithmetic, typename Number, bool ADJACENT>
struct First {
  static constexpr int64_t PER = Arithmetic::PER_UNIT, GROUP = ADJACENT ? 1 : addnorm::GROUP;

  const Number* data;
  int64_t stride;
  Tiles tiles;

  void copy(Pass pass, int64_t tile, int64_t last, float* to) const {
    if constexpr (ADJACENT)
      copy_rows(pass, tile, to);
    else
      copy_columns(pass, tile, last, to);
  }

  void copy_rows(Pass pass, int64_t tile, float* to) const {
    const int64_t height = tiles.height(tile);
    for (int64_t r = 0; r < TILE_ROWS; ++r, to += Layout<Arithmetic, true>::ROW) {
      const Number* from = data + (tiles.row(tile) + r) * stride + pass.begin * PER;
      for (int64_t i = 0; i < pass.units; i += WIDTH) {
        const int64_t left = pass.inner - (pass.begin + i) * PER;
        store(to + i, r < height ? Arithmetic::along(from + i * PER, left) : Units{});
      }
    }
  }

  void copy_columns(Pass pass, int64_t tile, int64_t last, float* to) const {
    int64_t at[GROUP + 1];
    for (int64_t t = tile; t < last; ++t) at[t - tile] = tiles.row(t);
    for (int64_t i = 0; i < pass.units; ++i, to += WIDTH) {
      const int64_t k = (pass.begin + i) * PER;
      const Number* from = data + k * stride;
      const bool both = PER > 1 && k + 1 < pass.inner;
      for (int64_t t = 0; t < last - tile; ++t) {
        const Number *number = from + at[t], *second = both ? number + stride : nullptr;
        store(to + t * TILE_UNITS<Arithmetic>,
              Arithmetic::across(number, second, tiles.rows - at[t]));
      }
    }
  }

  // The lines that a copy of these tiles reads.
  Ahead lines(Pass pass, int64_t tile, int64_t last) const {
    if (tile >= last) return {};
    const int64_t k = pass.begin * PER, length = std::min(pass.units * PER, pass.inner - k);
    const int64_t r = tiles.row(tile), height = tiles.row(last) - r;
    if (ADJACENT) return lines_of(data + r * stride + k, stride, length, height);
    return lines_of(data + k * stride + r, stride, height, length);
  }
};

// The second factor: if ADJACENT, numbers of the inner dimension lie side by side and there is a
// pointer for each column; else there is a pointer for each of them.
template <typename Arithmetic, typename Number, bool ADJACENT>
struct Second {
  static constexpr int64_t PER = Arithmetic::PER_UNIT;

  std::vector<const Number*> at;
  int64_t columns;

  // The rows of several matrices.
  explicit Second(const std::vector<Tensor>& matrices) {
    for (const Tensor& matrix : matrices)
      for (int64_t i = 0; i < matrix.size(0); ++i)
        at.push_back(pointer<Number>(matrix) + i * matrix.size(1));
    columns = ADJACENT ? int64_t(at.size()) : matrices.at(0).size(1);
  }

  // Panels of TILE_COLUMNS for each unit, with zeros beyond the last column.
  void copy(Pass pass, int64_t column, int64_t last, float* to) const {
    for (int64_t p = column; p < last; p += TILE_COLUMNS, to += pass.units * TILE_COLUMNS)
      for (int64_t c = 0; c < TILE_COLUMNS; c += WIDTH) {
        const int64_t width = std::clamp<int64_t>(columns - p - c, 0, WIDTH);
        if (!width)
          for (int64_t i = 0; i < pass.units; ++i) store(to + i * TILE_COLUMNS + c, Units{});
        else if constexpr (ADJACENT)
          transpose_columns(pass, p + c, width, to + c);
        else
          copy_rows(pass, p + c, width, to + c);
      }
  }

  void copy_rows(Pass pass, int64_t c, int64_t width, float* to) const {
    constexpr int64_t SOON = 8 * PER;
    for (int64_t i = 0; i < pass.units; ++i, to += TILE_COLUMNS) {
      const int64_t k = (pass.begin + i) * PER;
      for (int64_t soon = k + SOON; soon < std::min(k + SOON + PER, pass.inner); ++soon)
        __builtin_prefetch(at[soon] + c);
      const bool both = PER > 1 && k + 1 < pass.inner;
      store(to, Arithmetic::across(at[k] + c, both ? at[k + 1] + c : nullptr, width));
    }
  }

  void transpose_columns(Pass pass, int64_t c, int64_t width, float* to) const {
    for (int64_t i = 0; i < pass.units; i += WIDTH) {
      Units square[WIDTH] = {};
      const int64_t k = (pass.begin + i) * PER;
      for (int64_t r = 0; r < width; ++r) {
        if (c + r + WIDTH < columns) __builtin_prefetch(at[c + r + WIDTH] + k);
        square[r] = Arithmetic::along(at[c + r] + k, pass.inner - k);
      }
      transpose(square);
      for (int64_t r = 0; r < std::min(WIDTH, pass.units - i); ++r)
        store(to + (i + r) * TILE_COLUMNS, square[r]);
    }
  }
};

}  // namespace addnorm
