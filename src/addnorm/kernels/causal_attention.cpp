// softmax(scale q kᵀ) v under a causal mask in float32, and its gradient, with scores in the cache.
//
// Sixteen queries at a time meet the keys up to their own: their scores, weights and mixed values
// stay in the first cache, and nothing is computed for later keys. The gradient computes the weights
// again (Dao et al. 2022, arXiv 2205.14135, §3.1). A head depends neither on others nor on the number
// of threads.

#include "heads.h"
#include "small_products.h"

namespace {

using namespace addnorm;

constexpr int64_t QUERIES = WIDTH;  // queries at a time, a multiple of ROWS

// Rows from `first` on times a factor; zeros follow those that there are, and their numbers.
void pack(const Matrix<const float>& of, int64_t first, int64_t rows, float factor, float* to) {
  const int64_t line = padded(of.width);
  for (int64_t i = first; i < first + rows; ++i, to += line)
    for (int64_t d = 0; d < line; d += WIDTH)
      store(to + d, i < of.rows ? load_some(of.row(i), d, of.width) * factor : Vector{});
}

// The transposed matrix, in rows of `line` numbers; zeros follow those that there are.
void transpose(const Matrix<const float>& of, int64_t line, float* to) {
  const std::vector<float> zeros(of.width);
  for (int64_t i = 0; i < line; i += WIDTH) {
    const float* rows[WIDTH];
    for (int64_t r = 0; r < WIDTH; ++r) rows[r] = i + r < of.rows ? of.row(i + r) : zeros.data();
    for (int64_t d = 0; d < of.width; ++d)
      for (int64_t r = 0; r < WIDTH; ++r) to[d * line + i + r] = rows[r][d];
  }
}

struct Head {
  Matrix<const float> q, k, v, dy;
  Matrix<float> y, dq, dk, dv;
  float scale;
};

// The memory of one head after another, of the same sizes.
class Pass {
 public:
  Pass(int64_t keys, int64_t width)
      : keys(padded(keys)), width(padded(width)), k(this->keys * this->width), v(k), kt(k), vt(k),
        dk(k), dv(k), q(QUERIES * this->width), dy(q), mixed(q), scores(QUERIES * this->keys),
        slopes(scores) {}

  void forward(const Head& of) {
    transpose(of.k, keys, kt.data());
    pack(of.v, 0, keys, 1.f, v.data());
    each_queries(of, [&](int64_t first, int64_t n, int64_t n_keys) {
      Vector factors = {};
      for (int64_t r = 0; r < n; ++r) factors[r] = weigh(&scores[r * keys], first + r + 1, n_keys);
      multiply(QUERIES, width, n_keys, {scores.data(), keys, 1}, v.data(), width, mixed.data(), width);
      for (int64_t r = 0; r < n; ++r)
        along(of.y.width, [&](int64_t d, int64_t n) {
          store(of.y.row(first + r) + d, load(&mixed[r * width + d]) * factors[r], n);
        });
    });
  }

  void backward(const Head& of) {
    transpose(of.k, keys, kt.data());
    transpose(of.v, keys, vt.data());
    pack(of.k, 0, keys, of.scale, k.data());
    std::fill(dk.begin(), dk.end(), 0.f);
    std::fill(dv.begin(), dv.end(), 0.f);
    each_queries(of, [&](int64_t first, int64_t n, int64_t n_keys) {
      pack(of.dy, first, QUERIES, 1.f, dy.data());
      multiply(QUERIES, n_keys, of.v.width, {dy.data(), width, 1}, vt.data(), keys, slopes.data(), keys);
      for (int64_t r = 0; r < n; ++r)
        differentiate(&scores[r * keys], &slopes[r * keys], first + r + 1, n_keys);
      multiply(n_keys, width, n, {scores.data(), 1, keys}, dy.data(), width, dv.data(), width, true);
      multiply(n_keys, width, n, {slopes.data(), 1, keys}, q.data(), width, dk.data(), width, true);
      multiply(QUERIES, width, n_keys, {slopes.data(), keys, 1}, k.data(), width, mixed.data(), width);
      copy(mixed.data(), of.dq, first, n);
    });
    copy(dk.data(), of.dk, 0, of.k.rows);
    copy(dv.data(), of.dv, 0, of.k.rows);
  }

 private:
  // Calls `then(first, n, n_keys)` with the scores of n queries and the keys that they see, padded.
  template <typename Then>
  void each_queries(const Head& of, const Then& then) {
    for (int64_t i = 0; i < of.q.rows; i += QUERIES) {
      const int64_t n = std::min(QUERIES, of.q.rows - i), n_keys = padded(i + n);
      pack(of.q, i, QUERIES, of.scale, q.data());
      multiply(QUERIES, n_keys, of.q.width, {q.data(), width, 1}, kt.data(), keys, scores.data(), keys);
      then(i, n, n_keys);
    }
  }

  // Replaces the first n scores of a query by exp of their distance from the largest, others by
  // zeros; returns 1 / their sum.
  static float weigh(float* x, int64_t n, int64_t n_keys) {
    std::fill(x + n, x + n_keys, -INFINITY);
    Vector most = load(x), total = {};
    for (int64_t j = WIDTH; j < n_keys; j += WIDTH) {
      const Vector next = load(x + j);
      most = next > most ? next : most;
    }
    float largest = most[0];
    for (int64_t c = 1; c < WIDTH; ++c) largest = std::max(largest, most[c]);
    for (int64_t j = 0; j < n_keys; j += WIDTH) {
      const Vector weight = decay(largest - load(x + j));
      store(x + j, weight);
      total += weight;
    }
    return 1.f / sum(total);
  }

  // Replaces scores by weights, and the gradients of weights by those of scores: weight times the
  // difference of its gradient from their mean.
  static void differentiate(float* weights, float* x, int64_t n, int64_t n_keys) {
    const float factor = weigh(weights, n, n_keys);
    Vector total = {};
    for (int64_t j = 0; j < n_keys; j += WIDTH) total += load(weights + j) * load(x + j);
    const float mean = sum(total) * factor;
    for (int64_t j = 0; j < n_keys; j += WIDTH) {
      const Vector weight = load(weights + j) * factor;
      store(weights + j, weight);
      store(x + j, weight * (load(x + j) - mean));
    }
  }

  void copy(const float* from, const Matrix<float>& to, int64_t first, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(from + r * width, to.width, to.row(first + r));
  }

  const int64_t keys, width;  // padded
  std::vector<float> k, v, kt, vt, dk, dv, q, dy, mixed, scores, slopes;
};

template <typename Run>
void each_head(const Tensor& q, const Tensor& k, const Tensor& v, const Run& run) {
  for (const Tensor& x : {q, k, v}) {
    check(x.scalar_type() == ScalarType::Float);
    for (int64_t axis = 0; axis < 4; ++axis) check(x.size(axis) == q.size(axis));
  }
  const int64_t heads = q.size(2);
  torch::stable::parallel_for(0, q.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    Pass pass(q.size(1), q.size(3));
    for (int64_t n = begin; n < end; ++n) run(pass, n / heads, n % heads);
  });
}

Tensor causal_attention(Tensor q, Tensor k, Tensor v, double scale) {
  const Tensor y = contiguous_like(q);
  each_head(q, k, v, [&](Pass& pass, int64_t i, int64_t h) {
    auto input = [&](const Tensor& x) { return head_of<const float>(x, i, h); };
    pass.forward({.q = input(q), .k = input(k), .v = input(v), .y = head_of<float>(y, i, h),
                  .scale = float(scale)});
  });
  return y;
}

std::tuple<Tensor, Tensor, Tensor> causal_attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v,
                                                            double scale) {
  const Tensor dq = contiguous_like(q), dk = contiguous_like(k), dv = contiguous_like(v);
  each_head(q, k, v, [&](Pass& pass, int64_t i, int64_t h) {
    auto input = [&](const Tensor& x) { return head_of<const float>(x, i, h); };
    auto output = [&](const Tensor& x) { return head_of<float>(x, i, h); };
    pass.backward({.q = input(q), .k = input(k), .v = input(v), .dy = input(dy), .dq = output(dq),
                   .dk = output(dk), .dv = output(dv), .scale = float(scale)});
  });
  return {dq, dk, dv};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("causal_attention", TORCH_BOX(&causal_attention));
  library.impl("causal_attention_backward", TORCH_BOX(&causal_attention_backward));
}
