// The gradient of softmax(scale q kᵀ) v in bfloat16, with a block of scores in the cache.
//
// Products have sums in float32. Scores are computed again from the logarithms of their sums, a block
// of keys at a time (Dao et al. 2022, arXiv 2205.14135, algorithm 4), transposed: then the rows of
// all products lie in memory as they are, and only the gradient of q is turned at the end. The
// gradient of a head depends neither on others nor on the number of threads.

#include "exponentials.h"
#include "paired_products.h"

namespace {

using namespace addnorm;

constexpr int64_t BLOCK = 64;  // keys at a time

struct Head {
  Input q, k, v, y, dy;
  Output dq, dk, dv;
  const float* log_sums;  // of each query
  float scale;
  bool causal;
};

class Backward {
 public:
  Backward(int64_t queries, int64_t keys, int64_t width)
      : queries(queries), width(width), line((queries + WIDTH - 1) / WIDTH * WIDTH),
        q(queries * width), qt(q), dy(q), dyt(q), kt(keys * width), weights(BLOCK * line),
        slopes(weights), pairs(weights), scores(BLOCK * line), dweights(scores),
        dqt(queries * width), block(BLOCK * width), shares(line) {}

  void run(const Head& of) {
    in_pairs(of.q, q.data(), width);
    in_pairs(of.dy, dy.data(), width);
    transposed_in_pairs(of.q, qt.data());
    transposed_in_pairs(of.dy, dyt.data());
    transposed(of.k, kt.data());
    std::fill(dqt.begin(), dqt.end(), 0.f);
    for (int64_t i = 0; i < queries; ++i) {
      Vector total = {};
      along(width, [&](int64_t d, int64_t n) {
        total += load(of.y.row(i) + d, n) * load(of.dy.row(i) + d, n);
      });
      shares[i] = sum(total);
    }
    for (int64_t j = 0; j < of.k.rows; j += BLOCK) add_keys(of, j, std::min(BLOCK, of.k.rows - j));
    const Matrix<const float> columns{dqt.data(), width, queries, queries};
    each_column(columns, [&](int64_t i, int64_t d, Vector row, int64_t n) {
      store(of.dq.row(i) + d, row * of.scale, n);
    });
  }

 private:
  // The gradients of m keys and their values, and what they add to those of the queries.
  void add_keys(const Head& of, int64_t j, int64_t m) {
    const int64_t first = of.causal ? j : 0, n = queries - first;
    multiply(m, n, width, of.k.row(j), of.k.stride, &qt[2 * first], queries, scores.data(), line);
    multiply(m, n, width, of.v.row(j), of.v.stride, &dyt[2 * first], queries, dweights.data(), line);
    for (int64_t r = 0; r < m; ++r) differentiate(of, r, first, of.causal ? r : 0);
    multiply(m, width, n, weights.data(), line, &dy[first * width], width, block.data(), width);
    copy(of.dv, j, m, 1.f);
    multiply(m, width, n, slopes.data(), line, &q[first * width], width, block.data(), width);
    copy(of.dk, j, m, of.scale);
    in_pairs({slopes.data(), m, n, line}, pairs.data(), line);
    multiply(width, n, m, &kt[j], of.k.rows, pairs.data(), line, &dqt[first], queries, true);
  }

  // The weights of a key for the queries from `first`, and the gradients of its scores: weight
  // times the difference of its own gradient from their mean. Both are zero before `begin`.
  void differentiate(const Head& of, int64_t r, int64_t first, int64_t begin) {
    float* x = &scores[r * line];
    std::fill(x, x + begin, -INFINITY);
    along(queries - first, [&](int64_t i, int64_t n) {
      const Vector weight = decay(load(of.log_sums + first + i, n) - load(x + i) * of.scale);
      const Vector difference = load(&dweights[r * line + i]) - load(&shares[first + i], n);
      store(&weights[r * line + i], weight);
      store(&slopes[r * line + i], weight * difference);
    });
  }

  void copy(const Output& to, int64_t first, int64_t rows, float factor) {
    for (int64_t r = 0; r < rows; ++r)
      along(width, [&](int64_t d, int64_t n) {
        store(to.row(first + r) + d, load(&block[r * width + d], n) * factor, n);
      });
  }

  const int64_t queries, width, line;
  std::vector<BFloat16> q, qt, dy, dyt, kt, weights, slopes, pairs;
  std::vector<float> scores, dweights, dqt, block, shares;
};

std::tuple<Tensor, Tensor, Tensor> attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v,
                                                      Tensor y, Tensor log_sums, bool causal,
                                                      double scale) {
  check_pairs(q, k, v, causal);
  check_same_sizes(q, y);
  check_pairs(q, y, dy, causal);
  check(log_sums.numel() == q.numel() / std::max<int64_t>(q.size(3), 1));
  check_numbers(log_sums, {ScalarType::Float});
  const Tensor dq = contiguous_like(q), dk = contiguous_like(k), dv = contiguous_like(v);
  const int64_t heads = q.size(2);
  torch::stable::parallel_for(0, q.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    Backward pass(q.size(1), k.size(1), q.size(3));
    for (int64_t n = begin; n < end; ++n) {
      auto input = [&](const Tensor& x) { return head_of<const BFloat16>(x, n / heads, n % heads); };
      auto output = [&](const Tensor& x) { return head_of<BFloat16>(x, n / heads, n % heads); };
      pass.run({input(q), input(k), input(v), input(y), input(dy), output(dq), output(dk), output(dv),
                pointer<float>(log_sums) + n * q.size(1), float(scale), causal});
    }
    release_products();
  });
  return {dq, dk, dv};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("attention_backward", TORCH_BOX(&attention_backward));
}
