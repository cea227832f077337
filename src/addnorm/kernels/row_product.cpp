// x Wᵀ + b for a few rows x and some matrices W, in float32 or bfloat16 with sums in float32.
//
// Every weight is read once, in the order of memory, for all rows. The result of a row depends
// neither on other rows nor on the number of threads.

#include "row_product.h"

#ifndef __APPLE__
// oneDNN's product, of libtorch_cpu where that has oneDNN.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_cpu__linear_pointwise(
    AtenTensorHandle x, AtenTensorHandle weight, AtenTensorHandle* bias, const char* activation,
    const double** scalars, int64_t count, const char** algorithm, AtenTensorHandle* result);
#endif

namespace {

using namespace addnorm;

template <typename Number>
constexpr int64_t STEP = 64 / sizeof(Number);  // numbers at a time, a line of a cache

inline Vector load_step(const float* from) { return load(from); }

inline void add_products(Vector& totals, const Vector& x, const Vector& w) { totals += x * w; }

#ifdef __AVX512BF16__
inline Bits load_step(const BFloat16* from) {
  Bits bits;
  std::memcpy(&bits, from, sizeof bits);
  return bits;
}

// Products of numbers in bfloat16 are exact in float32; subnormal ones count as zero.
inline void add_products(Vector& totals, const Bits& x, const Bits& w) {
  totals = (Vector)_mm512_dpbf16_ps((__m512)totals, (__m512bh)x, (__m512bh)w);
}
#else
struct Pair {
  Vector first, second;
};

// The numbers at even places, then those at odd places: two bit operations, where widening in
// order needs the slower exchange of lanes.
inline Pair load_step(const BFloat16* from) {
  Bits bits;
  std::memcpy(&bits, from, sizeof bits);
  return {(Vector)(bits << 16), (Vector)(bits & 0xffff0000u)};
}

inline void add_products(Vector& totals, const Pair& x, const Pair& w) {
  totals += x.first * w.first;
  totals += x.second * w.second;
}
#endif

template <typename Number>
using Step = decltype(load_step(static_cast<const Number*>(nullptr)));

// The rows of x in steps, the last one with zeros.
template <typename Number>
struct Steps {
  int64_t width;  // of a row
  std::vector<Step<Number>> steps;

  Steps(const Number* x, int64_t rows, int64_t d_in, int64_t)
      : width((d_in + STEP<Number> - 1) / STEP<Number>), steps(rows * width) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        Number some[STEP<Number>] = {};
        const int64_t begin = i * STEP<Number>, n = std::min(STEP<Number>, d_in - begin);
        std::memcpy(some, x + row * d_in + begin, n * sizeof(Number));
        steps[row * width + i] = load_step(some);
      }
    }
  }
};

template <typename Number>
struct Product : Columns<Number> {
  using Factors = Steps<Number>;
  using Weight = Number;
  static constexpr int ROWS = 4, OUTPUTS = 4;  // at a time

  const Factors& x;
  const Number* weight;

  Product(const Columns<Number>& columns, const Factors& x, const Tensor& weight)
      : Columns<Number>(columns), x(x), weight(pointer<Number>(weight)) {}

  // Every `apart`-th output from `first`, of the rows from `row`.
  template <int ROWS, int OUTPUTS>
  void block(int64_t row, int64_t first, int64_t apart) const {
    Vector totals[ROWS][OUTPUTS] = {};
    constexpr int64_t N = STEP<Number>;
    const int64_t d_in = this->d_in;
    const Step<Number>* factors = x.steps.data() + row * x.width;
    const Number* w = weight + first * d_in;
    Ahead<Product> ahead(row, this->rows, d_in * sizeof(Number), LINE);
    int64_t i = 0;
    for (; i + N <= d_in; i += N, ahead.step())
      add<ROWS, OUTPUTS>(totals, factors++, w + i, apart * d_in, ahead);
    if (int64_t rest = d_in - i) {
      Number last[OUTPUTS][N] = {};
      for (int o = 0; o < OUTPUTS; ++o)
        std::memcpy(last[o], w + o * apart * d_in + i, rest * sizeof(Number));
      add<ROWS, OUTPUTS>(totals, factors, last[0], N, ahead);
    }
    this->template put_sums<ROWS, OUTPUTS>(row, first, apart, totals);
  }

  template <int ROWS, int OUTPUTS>
  __attribute__((always_inline)) void add(Vector (&totals)[ROWS][OUTPUTS],
                                          const Step<Number>* factors, const Number* w,
                                          int64_t stride, Ahead<Product> ahead) const {
    Step<Number> weights[OUTPUTS];
#pragma GCC unroll 4
    for (int o = 0; o < OUTPUTS; ++o) {
      weights[o] = load_step(w + o * stride);
      ahead.fetch(w + o * stride);
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int o = 0; o < OUTPUTS; ++o) add_products(totals[r][o], factors[r * x.width], weights[o]);
  }
};

Tensor by_onednn(const Tensor& x, const Tensor& packed,
                 const std::optional<std::vector<Tensor>>& biases) {
#ifndef __APPLE__
  check(aoti_torch_cpu__linear_pointwise);
  AtenTensorHandle result, bias = biases ? (*biases)[0].get() : nullptr;
  const char* no_algorithm = "";
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu__linear_pointwise(
      x.get(), packed.get(), bias ? &bias : nullptr, "none", nullptr, 0, &no_algorithm, &result));
  return Tensor(result);
#else
  throw std::runtime_error("torch has no oneDNN here");
#endif
}

// `packed` is the one matrix as oneDNN reads it, for more than `few` rows.
Tensor row_product(Tensor x, std::vector<Tensor> weights, std::optional<std::vector<Tensor>> biases,
                   std::optional<Tensor> packed, int64_t few) {
  const int64_t d_in = x.size(-1);
  for (const Tensor& weight : weights)
    check(d_in == weight.size(1) && x.scalar_type() == weight.scalar_type());
  if (!packed || x.numel() <= few * d_in) return multiplied<Product>(x, biases, weights);
  check(weights.size() == 1);
  return by_onednn(x, *packed, biases);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("row_product", TORCH_BOX(&row_product));
}

STABLE_TORCH_LIBRARY_IMPL(addnorm, MkldnnCPU, library) {  // where there is a packed matrix
  library.impl("row_product", TORCH_BOX(&row_product));
}
