// softmax(scale q kᵀ) v in bfloat16, with the scores of a block of queries in the cache.
//
// Products have sums in float32. Weights are rounded, and divided by the sum of the unrounded ones.
// Keys after the last query of a block are left out where attention is causal. The output of a head
// depends neither on others nor on the number of threads.

#include "exponentials.h"
#include "paired_products.h"

#include <tuple>

namespace {

using namespace addnorm;

constexpr int64_t BLOCK = 64;  // queries at a time

class Forward {
 public:
  Forward(int64_t keys, int64_t width, float scale, bool causal)
      : width(width), line((keys + WIDTH - 1) / WIDTH * WIDTH), scale(scale), causal(causal),
        kt(keys * width), v(keys * width), weights(BLOCK * line), scores(BLOCK * line),
        block(BLOCK * width) {}

  void run(const Input& q, const Input& k, const Input& values, const Output& y, float* log_sums) {
    transposed_in_pairs(k, kt.data());
    in_pairs(values, v.data(), width);
    for (int64_t i = 0; i < q.rows; i += BLOCK) {
      const int64_t m = std::min(BLOCK, q.rows - i), n = causal ? i + m : k.rows;
      multiply(m, n, width, q.row(i), q.stride, kt.data(), k.rows, scores.data(), line);
      float factors[BLOCK];
      for (int64_t r = 0; r < m; ++r) factors[r] = weigh(r, causal ? i + r + 1 : n, n, log_sums[i + r]);
      multiply(m, width, n, weights.data(), line, v.data(), width, block.data(), width);
      for (int64_t r = 0; r < m; ++r)
        along(width, [&](int64_t d, int64_t c) {
          store(y.row(i + r) + d, load(&block[r * width + d], c) * factors[r], c);
        });
    }
  }

 private:
  // Turns the first n scores of a row into weights, followed by zeros up to `end`. Returns the
  // factor that makes their sum one; `log_sum` gets the logarithm of the sum of exponentials.
  float weigh(int64_t r, int64_t n, int64_t end, float& log_sum) {
    float* x = &scores[r * line];
    BFloat16* to = &weights[r * line];
    std::fill(x + n, x + std::min(line, padded(end)), -INFINITY);
    Vector most = Vector{} - INFINITY;
    for (int64_t c = 0; c < n; c += WIDTH) {
      const Vector next = load(x + c) * scale;
      store(x + c, next);
      most = next > most ? next : most;
    }
    float largest = most[0];
    for (int64_t c = 1; c < WIDTH; ++c) largest = std::max(largest, most[c]);
    Vector total = {};
    for (int64_t c = 0; c < end; c += WIDTH) {
      const Vector weight = decay(largest - load(x + c));
      total += weight;
      store(to + c, weight);
    }
    const float all = sum(total);
    log_sum = largest + std::log(all);
    return 1 / all;
  }

  static int64_t padded(int64_t n) { return (n + WIDTH - 1) / WIDTH * WIDTH; }

  const int64_t width, line;
  const float scale;
  const bool causal;
  std::vector<BFloat16> kt, v, weights;
  std::vector<float> scores, block;
};

std::tuple<Tensor, Tensor> attention_forward(Tensor q, Tensor k, Tensor v, bool causal,
                                             double scale) {
  check_pairs(q, k, v, causal);
  const int64_t heads = q.size(2), shape[] = {q.size(0), heads, q.size(1)};
  const Tensor y = contiguous_like(q);
  const Tensor log_sums = torch::stable::new_empty(q, shape, ScalarType::Float);
  auto* sums = static_cast<float*>(log_sums.mutable_data_ptr());
  torch::stable::parallel_for(0, q.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    Forward pass(k.size(1), k.size(3), float(scale), causal);
    for (int64_t n = begin; n < end; ++n) {
      auto input = [&](const Tensor& x) { return head_of<const BFloat16>(x, n / heads, n % heads); };
      pass.run(input(q), input(k), input(v), head_of<BFloat16>(y, n / heads, n % heads),
               sums + n * q.size(1));
    }
    release_products();
  });
  return {y, log_sums};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("attention_forward", TORCH_BOX(&attention_forward));
}
