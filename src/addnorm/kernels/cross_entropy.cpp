// The cross-entropy of each row of logits and its gradient, a row in the cache at a time.
//
//   loss      log Σ exp(l) - (1 - ε) l_target - ε mean(l)
//   gradient  softmax(l) - y, where y is one-hot, mixed with the uniform distribution by ε
//
// Both are zero for a row that is left out.
// Logits are in float32 or bfloat16, as is their gradient; all is computed in float32.

#include "exponentials.h"

#include <tuple>

namespace {

using namespace addnorm;

constexpr int64_t PART = 256 * WIDTH;  // numbers whose sum is in float32

// Calls `pass(offset, n)` for up to WIDTH numbers at a time.
template <typename Pass>
void each(int64_t begin, int64_t end, const Pass& pass) {
  int64_t i = begin;
  for (; i + WIDTH <= end; i += WIDTH) pass(i, std::integral_constant<int64_t, WIDTH>());
  if (i < end) pass(i, end - i);
}

// The sum of `of(offset, n)` over a row; numbers after the n first of a vector are left out.
template <typename Of>
double total(int64_t size, const Of& of) {
  double all = 0;
  for (int64_t begin = 0; begin < size; begin += PART) {
    Vector part = {};
    each(begin, std::min(begin + PART, size), [&](int64_t i, int64_t n) {
      Vector x = of(i, n);
      for (int64_t c = n; c < WIDTH; ++c) x[c] = 0;
      part += x;
    });
    all += sum(part);
  }
  return all;
}

template <typename Number>
float largest_of(const Number* x, int64_t size) {
  Vector most = Vector{} - INFINITY;
  each(0, size, [&](int64_t i, int64_t n) {
    Vector next = load(x + i, n);
    for (int64_t c = n; c < WIDTH; ++c) next[c] = -INFINITY;
    most = in_registers([](Register a, Register b) { return a > b ? a : b; }, next, most);
  });
  float all = most[0];
  for (int64_t c = 1; c < WIDTH; ++c) all = std::max(all, most[c]);
  return all;
}

// The loss of a row, whose gradient it writes.
template <typename Number>
float row(const Number* x, int64_t size, int64_t target, double smoothing, Number* gradient) {
  const float most = largest_of(x, size);
  auto weights = [&](int64_t i, int64_t n) {
    return in_registers([&](Register part) { return register_decay(most - part); }, load(x + i, n));
  };
  const double sums = total(size, weights);
  const float factor = float(1 / sums), share = float(smoothing / size);
  each(0, size, [&](int64_t i, int64_t n) {
    auto slope = [&](Register weight) { return weight * factor - share; };
    store(gradient + i, in_registers(slope, weights(i, n)), n);
  });
  const float chosen = number(x[target]);
  store(gradient + target, decay(Vector{} + (most - chosen))[0] * factor - share + float(smoothing - 1));
  double loss = std::log(sums) + (double(most) - chosen);
  if (smoothing) {
    const double mean = total(size, [&](int64_t i, int64_t n) { return load(x + i, n); }) / size;
    loss += smoothing * (chosen - mean);
  }
  return float(loss);
}

template <typename Number>
void rows(const Tensor& logits, const Tensor& targets, double smoothing, int64_t ignored,
          const Tensor& losses, const Tensor& gradient) {
  const int64_t n_rows = logits.size(0), size = logits.size(1), *target = pointer<int64_t>(targets);
  for (int64_t i = 0; i < n_rows; ++i)
    if (target[i] != ignored && (target[i] < 0 || target[i] >= size))
      throw std::out_of_range("a target is out of bounds: no logit has its number");
  const Number* x = pointer<Number>(logits);
  auto* to = static_cast<Number*>(gradient.mutable_data_ptr());
  auto* loss = static_cast<float*>(losses.mutable_data_ptr());
  torch::stable::parallel_for(0, n_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool counts = target[i] != ignored;
      if (!counts) std::memset(to + i * size, 0, size * sizeof(Number));
      loss[i] = counts ? row(x + i * size, size, target[i], smoothing, to + i * size) : 0.f;
    }
  });
}

std::tuple<Tensor, Tensor> cross_entropy(Tensor logits, Tensor targets, double smoothing,
                                         int64_t ignored) {
  check(logits.dim() == 2 && targets.dim() == 1 && targets.size(0) == logits.size(0));
  check_numbers(logits, {ScalarType::Float, ScalarType::BFloat16});
  check_numbers(targets, {ScalarType::Long});
  const int64_t shape[] = {logits.size(0)};
  Tensor losses = torch::stable::new_empty(logits, shape, ScalarType::Float);
  Tensor gradient = torch::stable::empty_like(logits);
  const bool narrow = logits.scalar_type() == ScalarType::BFloat16;
  (narrow ? rows<BFloat16> : rows<float>)(logits, targets, smoothing, ignored, losses, gradient);
  return {losses, gradient};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("cross_entropy", TORCH_BOX(&cross_entropy));
}
