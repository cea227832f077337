// Products of several rows with a matrix of four bits, whose outputs lie side by side in registers.
//
// The bytes of a panel of outputs are exchanged once for all rows, so that an instruction multiplies
// four numbers of a row with the weights of many outputs, and no sum crosses lanes.

#pragma once

#include "int4_blocks.h"
#include "row_product.h"

namespace addnorm {

// The rows of x, block by block.
template <int DIGITS>
struct Blocks {
  struct Block {
    Rounded<DIGITS> numbers;
    int32_t correction;  // -8 Σ x, in steps
    float step;          // as part of the row's
  };

  int64_t rows;
  std::vector<double> steps;  // of each row's largest number; NaN if some number is not finite
  std::vector<Block> blocks;

  template <typename Number>
  Blocks(const Number* x, int64_t rows, int64_t d_in, int64_t bytes)
      : rows(rows), steps(rows), blocks(bytes / BLOCK * rows) {
    torch::stable::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        auto keep = [&](int64_t i, Vector a, Vector b, float size, float step) {
          Block& block = blocks[i / BLOCK * rows + row];
          block.correction = -8 * block.numbers.round(a, b, size);
          block.step = step;
        };
        const float size = for_each_block(x + row * d_in, d_in, bytes, keep);
        steps[row] = size / double(LARGEST<DIGITS>);
      }
    });
  }
};

template <typename Number, int DIGITS>
struct Panels : Columns<Number> {
  using Factors = Blocks<DIGITS>;
  using Block = typename Factors::Block;
  static constexpr bool SHARED = true;
  static constexpr int64_t UNITS = BLOCK / 4;  // of four bytes, which an instruction adds up
  static constexpr int64_t PARTS = 2, OUTPUTS = PARTS * WIDTH, ROWS = 64;  // at a time
  static constexpr int64_t AT_ONCE = LANES == 16 ? 2 : 1;  // registers of outputs

  typedef Vector Panel[PARTS];

  const Factors& x;
  const uint8_t* values;
  const BFloat16* scale;
  int64_t bytes, groups, blocks_of_group;

  Panels(const Columns<Number>& columns, const Factors& x, const Tensor& values,
         const Tensor& scale)
      : Columns<Number>(columns), x(x), values(pointer<uint8_t>(values)),
        scale(pointer<BFloat16>(scale)), bytes(values.size(1)), groups(scale.size(1)),
        blocks_of_group(groups ? bytes / groups / BLOCK : 1) {}

  // The results of n outputs.
  void panel(int64_t first, int64_t n) const {
    const std::vector<Vector> scales = scales_of(first, n);
    const uint8_t* outputs[OUTPUTS];
    for (int64_t o = 0; o < OUTPUTS; ++o) outputs[o] = values + (first + std::min(o, n - 1)) * bytes;
    for (int64_t row = 0; row < this->rows; row += ROWS) {
      const int64_t rows = std::min(ROWS, this->rows - row), blocks = bytes / BLOCK;
      Panel totals[ROWS];
      std::memset(totals, 0, rows * sizeof(Panel));
      Square squares[2];  // the next one is stored well before it is read
      if (blocks) squares[0].fill(outputs, 0, bytes);
      for (int64_t i = 0; i < blocks; ++i) {
        if (i + 1 < blocks) squares[(i + 1) % 2].fill(outputs, i + 1, bytes);
        add(totals, rows, &x.blocks[i * x.rows + row], squares[i % 2],
            &scales[i / blocks_of_group * PARTS]);
      }
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < n; i += WIDTH)
          put_all(row + r, first + i, std::min(WIDTH, n - i), totals[r][i / WIDTH]);
    }
  }

  void put_all(int64_t row, int64_t first, int64_t n, Vector total) const {
    const Wide wide = __builtin_convertvector(total, Wide) * x.steps[row];
    const Vector shift = this->bias ? load(this->bias + first, n) : Vector{};
    store(this->y + row * this->stride + first, __builtin_convertvector(wide, Vector) + shift, n);
  }

  // The scales of n outputs, side by side for each group.
  std::vector<Vector> scales_of(int64_t first, int64_t n) const {
    std::vector<Vector> scales((groups + WIDTH - 1) / WIDTH * WIDTH * PARTS);
    for (int64_t group = 0; group < groups; group += WIDTH)
      for (int64_t p = 0; p < PARTS; ++p) {
        Vector square[WIDTH] = {};
        for (int64_t o = 0; o < WIDTH && p * WIDTH + o < n; ++o)
          square[o] = load_some(scale + (first + p * WIDTH + o) * groups, group, groups);
        transpose(square);
        for (int64_t i = 0; i < WIDTH; ++i) scales[(group + i) * PARTS + p] = square[i];
      }
    return scales;
  }

  // The bytes of a block: for each unit those of all outputs.
  struct Square {
    alignas(LINE) FourIntegers units[UNITS][OUTPUTS / 4];

    void fill(const uint8_t* const (&outputs)[OUTPUTS], int64_t block, int64_t bytes) {
      for (int64_t o = 0; o < OUTPUTS; o += 4) {
        FourIntegers x[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) std::memcpy(x + i, outputs[o + i] + block * BLOCK, BLOCK);
        const FourIntegers ab = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5),
                           cd = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5),
                           last_ab = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7),
                           last_cd = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
        units[0][o / 4] = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
        units[1][o / 4] = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
        units[2][o / 4] = __builtin_shufflevector(last_ab, last_cd, 0, 1, 4, 5);
        units[3][o / 4] = __builtin_shufflevector(last_ab, last_cd, 2, 3, 6, 7);
        to_second_cache(outputs[0] + OUTPUTS * bytes + (block * OUTPUTS + o) * BLOCK);  // later
      }
    }
  };

  // Adds the products of a block of some rows.
  static void add(Panel* totals, int64_t rows, const Block* blocks, const Square& square,
                  const Vector* scales) {
    for (int64_t o = 0; o < OUTPUTS; o += AT_ONCE * LANES) {
      RegisterBytes even[UNITS][AT_ONCE], odd[UNITS][AT_ONCE];
      Register scale[AT_ONCE];
#pragma GCC unroll 2
      for (int64_t p = 0; p < AT_ONCE; ++p) {
        scale[p] = load_register(reinterpret_cast<const float*>(scales) + o + p * LANES);
#pragma GCC unroll 4
        for (int64_t u = 0; u < UNITS; ++u) {
          const RegisterBytes both = load_bytes(&square.units[u][(o + p * LANES) / 4]);
          even[u][p] = both & 15, odd[u][p] = (RegisterBytes)((RegisterBits)both >> 4) & 15;
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        RegisterIntegers sums[AT_ONCE];
        multiply(sums, blocks[r], even, odd);
        float* total = reinterpret_cast<float*>(totals + r) + o;
#pragma GCC unroll 2
        for (int64_t p = 0; p < AT_ONCE; ++p, total += LANES)
          store_register(total, load_register(total) + __builtin_convertvector(sums[p], Register) *
                                                           (scale[p] * blocks[r].step));
      }
    }
  }

  // The products of a row's block, in two chains: of its digits, or of every second unit.
  __attribute__((always_inline)) static void multiply(RegisterIntegers (&sums)[AT_ONCE],
                                                      const Block& block,
                                                      const RegisterBytes (&even)[UNITS][AT_ONCE],
                                                      const RegisterBytes (&odd)[UNITS][AT_ONCE]) {
    RegisterIntegers chains[2][AT_ONCE] = {};
#pragma GCC unroll 2
    for (int64_t p = 0; p < AT_ONCE; ++p) chains[0][p] += block.correction;
#pragma GCC unroll 4
    for (int64_t u = 0; u < UNITS; ++u)
#pragma GCC unroll 2
      for (int digit = 0; digit < DIGITS; ++digit) {
        const RegisterBytes evens = everywhere(block.numbers.even[digit] + 4 * u),
                            odds = everywhere(block.numbers.odd[digit] + 4 * u);
        auto& chain = chains[DIGITS == 2 ? digit : u % 2];
#pragma GCC unroll 2
        for (int64_t p = 0; p < AT_ONCE; ++p)
          chain[p] = dot_small(chain[p], even[u][p], evens, odd[u][p], odds);
      }
#pragma GCC unroll 2
    for (int64_t p = 0; p < AT_ONCE; ++p)
      sums[p] = chains[0][p] + (DIGITS == 2 ? chains[1][p] * 256 : chains[1][p]);
  }

  // Four bytes in each lane.
  static RegisterBytes everywhere(const int8_t* four) {
    int32_t bits;
    std::memcpy(&bits, four, sizeof bits);
    return (RegisterBytes)(RegisterIntegers{} + bits);
  }
};

// The results of panels from `begin` to `end`, which are counted through all matrices.
template <typename Number, int DIGITS>
void fill(const std::vector<Panels<Number, DIGITS>>& products, int64_t begin, int64_t end) {
  constexpr int64_t OUTPUTS = Panels<Number, DIGITS>::OUTPUTS;
  for (const auto& product : products) {
    const int64_t n = blocks_of<Panels<Number, DIGITS>>(product.d_out);
    for (int64_t i = std::max(begin, int64_t(0)); i < std::min(end, n); ++i)
      product.panel(OUTPUTS * i, std::min(OUTPUTS, product.d_out - OUTPUTS * i));
    begin -= n, end -= n;
  }
}

}  // namespace addnorm
