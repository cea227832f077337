// s = x + drop(f) and norm(s), LayerNorm or RMSNorm, and its gradient, a row in the cache at a time.
//
// The mask is a pure function of its seed, which the way back computes again.
// Sums over rows are those of blocks of rows, in their order, whatever the number of threads.
// f is in float32 or bfloat16, everything else in float32.

#include "dropout_mask.h"

#include <tuple>

namespace {

using namespace addnorm;

constexpr int64_t BLOCK = 64;  // rows whose gradients of gain and bias are summed first

// Calls `pass(column, n, m)` for the columns of a row: n of a vector, and m of the next.
template <typename Pass>
inline void along(int64_t width, const Pass& pass) {
  int64_t c = 0;
  const std::integral_constant<int64_t, WIDTH> all;
  for (; c + 2 * WIDTH <= width; c += 2 * WIDTH) pass(c, all, all);
  if (c < width)
    pass(c, std::min(WIDTH, width - c), std::max<int64_t>(0, width - c - WIDTH));
}

template <typename Number>
inline void load(const Number* from, int64_t n, int64_t m, Vector (&x)[2]) {
  x[0] = addnorm::load(from, n);
  x[1] = m ? addnorm::load(from + WIDTH, m) : Vector{};
}

template <typename Number>
inline void store(Number* to, int64_t n, int64_t m, const Vector (&x)[2]) {
  addnorm::store(to, x[0], n);
  if (m) addnorm::store(to + WIDTH, x[1], m);
}

// Sums of up to n numbers of a vector.
inline Vector first(Vector x, int64_t n) {
  for (int64_t i = n; i < WIDTH; ++i) x[i] = 0;
  return x;
}

struct Norm {
  const float *gain, *bias;  // or null
  bool centred;
  float eps;
};

// The sum, its norm, and the mean and the factor 1 / √(σ² + ε) of a row.
template <typename Number>
void forward(const Norm& norm, const DropoutMask& mask, int64_t width, const Number* f, const float* x,
             float* s, float* y, float* statistics) {
  Vector total = {}, squares = {};
  along(width, [&](int64_t c, auto n, auto m) {
    Vector a[2], b[2];
    load(f + c, n, m, a);
    load(x + c, n, m, b);
    mask.apply(c, a);
    for (int i = 0; i < 2; ++i) a[i] += b[i];
    store(s + c, n, m, a);
    total += first(a[0], n) + first(a[1], m);
  });
  const float mean = norm.centred ? sum(total) / width : 0.f;
  along(width, [&](int64_t c, auto n, auto m) {
    Vector a[2];
    load(s + c, n, m, a);
    a[0] = first(a[0] - mean, n);
    a[1] = first(a[1] - mean, m);
    squares += a[0] * a[0] + a[1] * a[1];
  });
  const float factor = 1.f / std::sqrt(sum(squares) / width + norm.eps);
  along(width, [&](int64_t c, auto n, auto m) {
    Vector a[2], g[2], b[2];
    load(s + c, n, m, a);
    if (norm.gain) load(norm.gain + c, n, m, g);
    if (norm.bias) load(norm.bias + c, n, m, b);
    for (int i = 0; i < 2; ++i) {
      a[i] = (a[i] - mean) * factor;
      if (norm.gain) a[i] *= g[i];
      if (norm.bias) a[i] += b[i];
    }
    store(y + c, n, m, a);
  });
  statistics[0] = mean;
  statistics[1] = factor;
}

// The gradients of a row, and what it adds to those of gain and bias.
template <typename Number>
void backward(const Norm& norm, const DropoutMask& mask, int64_t width, const float* dy, const float* s,
              const float* statistics, Number* df, float* dx, float* dgain, float* dbias) {
  const float mean = statistics[0], factor = statistics[1];
  Vector total = {}, along_s = {};
  auto each = [&](int64_t c, auto n, auto m, const auto& pass) {
    Vector d[2], a[2], g[2];
    load(dy + c, n, m, d);
    load(s + c, n, m, a);
    if (norm.gain) load(norm.gain + c, n, m, g);
    for (int i = 0; i < 2; ++i) a[i] = (a[i] - mean) * factor;
    pass(d, a, g);
  };
  along(width, [&](int64_t c, auto n, auto m) {
    each(c, n, m, [&](auto& d, auto& a, auto& g) {
      Vector of_gain[2], of_bias[2];
      load(dgain + c, n, m, of_gain);
      load(dbias + c, n, m, of_bias);
      for (int i = 0; i < 2; ++i) {
        of_gain[i] += d[i] * a[i];
        of_bias[i] += d[i];
        if (norm.gain) d[i] *= g[i];
      }
      store(dgain + c, n, m, of_gain);
      store(dbias + c, n, m, of_bias);
      total += d[0] + d[1];
      along_s += first(d[0] * a[0], n) + first(d[1] * a[1], m);
    });
  });
  const float shift = norm.centred ? sum(total) / width : 0.f, slope = sum(along_s) / width;
  along(width, [&](int64_t c, auto n, auto m) {
    each(c, n, m, [&](auto& d, auto& a, auto& g) {
      for (int i = 0; i < 2; ++i)
        d[i] = ((norm.gain ? d[i] * g[i] : d[i]) - shift - a[i] * slope) * factor;
      store(dx + c, n, m, d);
      mask.apply(c, d);
      store(df + c, n, m, d);
    });
  });
}

template <typename Number>
Number* writable(const Tensor& of) {
  return static_cast<Number*>(of.mutable_data_ptr());
}

bool is_narrow(const Tensor& f) { return f.scalar_type() == ScalarType::BFloat16; }

void check_rows(const Tensor& f, const Tensor& x, const std::optional<Tensor>& weight) {
  check(x.dim() == 2 && (!weight || (weight->dim() == 1 && weight->size(0) == x.size(1))));
  check_same_sizes(f, x);
  check_numbers(f, {ScalarType::Float, ScalarType::BFloat16});
  for (const Tensor& numbers : {x, weight.value_or(x)}) check_numbers(numbers, {ScalarType::Float});
}

std::tuple<Tensor, Tensor, Tensor> add_norm(Tensor f, Tensor x, std::optional<Tensor> gain,
                                            std::optional<Tensor> bias, bool centred, double eps,
                                            double p, int64_t seed) {
  check_rows(f, x, gain);
  check_rows(f, x, bias);
  const int64_t rows = x.size(0), width = x.size(1), shape[] = {rows, 2};
  Tensor s = torch::stable::empty_like(x), y = torch::stable::empty_like(x);
  Tensor statistics = torch::stable::new_empty(x, shape);
  const Norm norm{pointer<float>(gain), pointer<float>(bias), centred, float(eps)};
  auto run = [&]<typename Number>(const Number* from) {
    torch::stable::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        forward(norm, DropoutMask(p, seed, r), width, from + r * width, pointer<float>(x) + r * width,
                writable<float>(s) + r * width, writable<float>(y) + r * width,
                writable<float>(statistics) + 2 * r);
    });
  };
  is_narrow(f) ? run(pointer<BFloat16>(f)) : run(pointer<float>(f));
  return {y, s, statistics};
}

std::tuple<Tensor, Tensor, Tensor> add_norm_backward(Tensor dy, Tensor s, Tensor statistics,
                                                     std::optional<Tensor> gain, bool centred,
                                                     Tensor like, double p, int64_t seed) {
  check_rows(like, s, gain);
  check_rows(s, dy, gain);
  const int64_t rows = s.size(0), width = s.size(1), blocks = (rows + BLOCK - 1) / BLOCK;
  const int64_t shape[] = {2, width};
  Tensor dx = torch::stable::empty_like(s), df = torch::stable::empty_like(like);
  Tensor sums = torch::stable::new_zeros(s, shape);
  std::vector<float> parts(blocks * 2 * width);
  const Norm norm{pointer<float>(gain), nullptr, centred, 0.f};
  auto run = [&]<typename Number>(Number* to) {
    torch::stable::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin * BLOCK; r < std::min(end * BLOCK, rows); ++r) {
        float* part = &parts[r / BLOCK * 2 * width];
        backward(norm, DropoutMask(p, seed, r), width, pointer<float>(dy) + r * width,
                 pointer<float>(s) + r * width, pointer<float>(statistics) + 2 * r, to + r * width,
                 writable<float>(dx) + r * width, part, part + width);
      }
    });
  };
  is_narrow(like) ? run(writable<BFloat16>(df)) : run(writable<float>(df));
  float* total = writable<float>(sums);
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < 2 * width; ++i) total[i] += parts[b * 2 * width + i];
  return {df, dx, sums};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("add_norm", TORCH_BOX(&add_norm));
  library.impl("add_norm_backward", TORCH_BOX(&add_norm_backward));
}
