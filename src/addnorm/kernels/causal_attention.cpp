// softmax(scale q kᵀ) v under a causal mask in float32, and its gradient, with scores in the cache.
//
// Sixteen queries at a time meet the keys up to their own: their scores, weights and mixed values
// stay in the first cache, and nothing is computed for later keys. A vector holds the scores of
// sixteen queries and one key, so that sums over keys are sums of vectors, and queries alone are
// transposed. The gradient computes the weights again (Dao et al. 2022, arXiv 2205.14135, §3.1). A
// head depends neither on others nor on the number of threads.

#include "exponentials.h"
#include "heads.h"
#include "small_products.h"

namespace {

using namespace addnorm;

constexpr int64_t QUERIES = WIDTH;  // queries at a time: a vector

// Rows from `first` on times a factor; zeros follow those that there are, and their numbers.
void pack(const Matrix<const float>& of, int64_t first, int64_t rows, float factor, float* to) {
  const int64_t line = padded(of.width), present = std::min(rows, of.rows - first);
  auto product = [&](Register x) { return x * factor; };
  for (int64_t i = 0; i < present; ++i)
    along(of.width, [&](int64_t d, int64_t n) {
      store(to + i * line + d, in_registers(product, load(of.row(first + i) + d, n)));
    });
  std::fill(to + present * line, to + rows * line, 0.f);
}

// The transposed matrix of QUERIES rows that `pack` has filled.
void transpose_rows(const float* from, int64_t width, float* to) {
  for (int64_t d = 0; d < width; d += WIDTH) {
    Vector square[WIDTH];
    for (int64_t r = 0; r < WIDTH; ++r) square[r] = load(from + r * width + d);
    transpose(square);
    for (int64_t r = 0; r < WIDTH; ++r) store(to + (d + r) * QUERIES, square[r]);
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
      : keys(padded(keys)), width(padded(width)), k(this->keys * this->width), v(k), dk(k), dv(k),
        q(QUERIES * this->width), qt(q), dy(q), dyt(q), mixed(q), weights(QUERIES * this->keys),
        slopes(weights) {}

  void forward(const Head& of) {
    each_queries(of, [&](int64_t first, int64_t n, int64_t n_keys, Vector factors) {
      multiply(QUERIES, width, n_keys, {weights.data(), 1, QUERIES}, v.data(), width, mixed.data(),
               width);
      copy(mixed.data(), factors, of.y, first, n);
    });
  }

  void backward(const Head& of) {
    std::fill(dk.begin(), dk.end(), 0.f);
    std::fill(dv.begin(), dv.end(), 0.f);
    each_queries(of, [&](int64_t first, int64_t n, int64_t n_keys, Vector factors) {
      pack(of.dy, first, QUERIES, 1.f, dy.data());
      transpose_rows(dy.data(), width, dyt.data());
      multiply(n_keys, QUERIES, of.v.width, {v.data(), width, 1}, dyt.data(), QUERIES, slopes.data(),
               QUERIES);
      differentiate(n_keys, factors);
      const Factor of_keys{weights.data(), QUERIES, 1}, of_scores{slopes.data(), QUERIES, 1};
      multiply(n_keys, width, n, of_keys, dy.data(), width, dv.data(), width, true);
      multiply(n_keys, width, n, of_scores, q.data(), width, dk.data(), width, true);
      multiply(QUERIES, width, n_keys, {slopes.data(), 1, QUERIES}, k.data(), width, mixed.data(),
               width);
      copy(mixed.data(), Vector{} + of.scale, of.dq, first, n);
    });
    for (int64_t i = 0; i < of.k.rows; i += QUERIES) {
      const int64_t n = std::min(QUERIES, of.k.rows - i);
      copy(dk.data() + i * width, Vector{} + 1.f, of.dk, i, n);
      copy(dv.data() + i * width, Vector{} + 1.f, of.dv, i, n);
    }
  }

 private:
  // Calls `then(first, n, n_keys, factors)` with the weights of n queries and the keys that they
  // see, padded. They are to be multiplied by the factors.
  template <typename Then>
  void each_queries(const Head& of, const Then& then) {
    pack(of.k, 0, keys, 1.f, k.data());
    pack(of.v, 0, keys, 1.f, v.data());
    for (int64_t i = 0; i < of.q.rows; i += QUERIES) {
      const int64_t n = std::min(QUERIES, of.q.rows - i), n_keys = padded(i + n);
      pack(of.q, i, QUERIES, of.scale, q.data());
      transpose_rows(q.data(), width, qt.data());
      multiply(n_keys, QUERIES, of.q.width, {k.data(), width, 1}, qt.data(), QUERIES, weights.data(),
               QUERIES);
      then(i, n, n_keys, weigh(i, n_keys));
    }
  }

  // Replaces the scores of each query, `first` and those after it, by exp of their distance from
  // the largest, those of later keys by zeros; returns 1 / the sums.
  Vector weigh(int64_t first, int64_t n_keys) {
    Parts factors;
    for (int64_t p = 0; p < WIDTH / LANES; ++p) {
      float* scores = &weights[p * LANES];
      RegisterBits places;
      for (int64_t r = 0; r < LANES; ++r) places[r] = uint32_t(first + p * LANES + r);
      Register most = Register{} - INFINITY, total = {};
      for (int64_t j = 0; j < n_keys; ++j) {
        Register x = load_register(scores + j * QUERIES);
        if (j > first) {
          x = places < uint32_t(j) ? Register{} - INFINITY : x;
          store_register(scores + j * QUERIES, x);
        }
        most = x > most ? x : most;
      }
      for (int64_t j = 0; j < n_keys; ++j) {
        const Register weight = register_decay(most - load_register(scores + j * QUERIES));
        store_register(scores + j * QUERIES, weight);
        total += weight;
      }
      factors.of[p] = 1.f / total;
    }
    return bits_as<Vector>(factors);
  }

  // Completes weights by their factors, and replaces their gradients by those of scores: weight
  // times the difference of its gradient from their mean.
  void differentiate(int64_t n_keys, Vector factors) {
    for (int64_t p = 0; p < WIDTH; p += LANES) {
      const Register factor = bits_as<Parts>(factors).of[p / LANES];
      Register mean = {};
      for (int64_t j = p; j < n_keys * QUERIES; j += QUERIES) {
        const Register weight = load_register(&weights[j]) * factor;
        store_register(&weights[j], weight);
        mean += weight * load_register(&slopes[j]);
      }
      for (int64_t j = p; j < n_keys * QUERIES; j += QUERIES)
        store_register(&slopes[j], load_register(&weights[j]) * (load_register(&slopes[j]) - mean));
    }
  }

  // Rows times their factors, to the rows from `first` on.
  void copy(const float* from, Vector factors, const Matrix<float>& to, int64_t first, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      auto product = [factor = factors[r]](Register x) { return x * factor; };
      along(to.width, [&](int64_t d, int64_t n) {
        store(to.row(first + r) + d, in_registers(product, load(from + r * width + d)), n);
      });
    }
  }

  const int64_t keys, width;  // padded
  std::vector<float> k, v, dk, dv, q, qt, dy, dyt, mixed, weights, slopes;
};

template <typename Run>
void each_head(std::initializer_list<Tensor> inputs, const Run& run) {
  const Tensor& q = *inputs.begin();
  for (const Tensor& x : inputs) check_heads(x, ScalarType::Float), check_same_sizes(x, q);
  const int64_t heads = q.size(2);
  torch::stable::parallel_for(0, q.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    Pass pass(q.size(1), q.size(3));
    for (int64_t n = begin; n < end; ++n) run(pass, n / heads, n % heads);
  });
}

Tensor causal_attention(Tensor q, Tensor k, Tensor v, double scale) {
  const Tensor y = contiguous_like(q);
  each_head({q, k, v}, [&](Pass& pass, int64_t i, int64_t h) {
    auto input = [&](const Tensor& x) { return head_of<const float>(x, i, h); };
    pass.forward({.q = input(q), .k = input(k), .v = input(v), .y = head_of<float>(y, i, h),
                  .scale = float(scale)});
  });
  return y;
}

std::tuple<Tensor, Tensor, Tensor> causal_attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v,
                                                            double scale) {
  const Tensor dq = contiguous_like(q), dk = contiguous_like(k), dv = contiguous_like(v);
  each_head({q, k, v, dy}, [&](Pass& pass, int64_t i, int64_t h) {
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
