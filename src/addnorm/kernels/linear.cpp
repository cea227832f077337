// The linear layer of many rows and its gradients, in float32, or in bfloat16 with sums in float32.
//
//   y = x Wᵀ + b,  dx = dy W,  dW = dyᵀ x,  db = Σ dy
//
// The rows of several matrices are those of one. In bfloat16 what is float32 is rounded on its way
// into the cache; the gradients of matrices and biases are float32.

#include <tuple>

#include "matmul.h"

namespace {

using namespace addnorm;

bool is_narrow(const Tensor& x) { return x.scalar_type() == ScalarType::BFloat16; }

template <typename... Sizes>
Tensor empty(const Tensor& like, ScalarType type, Sizes... sizes) {
  const int64_t shape[] = {sizes...};
  return torch::stable::new_empty(like, shape, type);
}

template <typename Number>
Number* writable(const Tensor& of) {
  return static_cast<Number*>(of.mutable_data_ptr());
}

// Computes the shares of products on all threads, each one after another.
template <typename... Products>
void run(Products&... products) {
  (products.prepare(), ...);
  const int64_t threads = torch::stable::get_num_threads();
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) (products.share(i, threads), ...);
  });
}

void check_tensor(const Tensor& x, int64_t axes, bool may_be_narrow) {
  check(x.dim() == axes && x.is_contiguous());
  check(x.scalar_type() == ScalarType::Float || (may_be_narrow && is_narrow(x)));
}

// The rows of all matrices together.
int64_t check_matrices(const std::vector<Tensor>& matrices, int64_t d_in) {
  check(d_in > 0);
  int64_t rows = 0;
  for (const Tensor& matrix : matrices) {
    check_tensor(matrix, 2, false);
    check(matrix.size(1) == d_in);
    rows += matrix.size(0);
  }
  return rows;
}

template <typename Arithmetic, typename X, typename Y>
Tensor product(const Tensor& x, const std::vector<Tensor>& weights, const float* bias) {
  const int64_t n = x.size(0), d_in = x.size(1), d_out = check_matrices(weights, d_in);
  Tensor y =
      empty(x, std::is_same_v<Y, float> ? ScalarType::Float : ScalarType::BFloat16, n, d_out);
  const Second<Arithmetic, float, true> matrix(weights);
  Product<Arithmetic, X, true, float, true, Y> all{{pointer<X>(x), d_in, n}, matrix, d_in, bias,
                                                   writable<Y>(y),           nullptr};
  run(all);
  return y;
}

Tensor linear(Tensor x, std::vector<Tensor> weights, std::optional<std::vector<Tensor>> biases,
              bool narrow) {
  check_tensor(x, 2, narrow);
  check(!biases || biases->size() == weights.size());
  std::vector<float> bias;
  for (size_t i = 0; biases && i < biases->size(); ++i) {
    const Tensor& some = (*biases)[i];
    check_tensor(some, 1, false);
    check(some.size(0) == weights[i].size(0));
    bias.insert(bias.end(), pointer<float>(some), pointer<float>(some) + some.numel());
  }
  const auto by = !narrow        ? product<Float32, float, float>
                  : is_narrow(x) ? product<Pairs, BFloat16, BFloat16>
                                 : product<Pairs, float, BFloat16>;
  return by(x, weights, biases ? bias.data() : nullptr);
}

using Gradients = std::tuple<Tensor, Tensor, Tensor>;

template <typename Arithmetic, typename Y, typename X>
Gradients gradients(const Tensor& dy, const Tensor& x, const std::vector<Tensor>& weights,
                    bool of_x, bool of_weights) {
  const int64_t n = x.size(0), d_in = x.size(1), d_out = check_matrices(weights, d_in);
  check(dy.size(0) == n && dy.size(1) == d_out);
  Tensor dx = empty(x, x.scalar_type(), of_x ? n : 0, d_in);
  Tensor dw = empty(x, ScalarType::Float, of_weights ? d_out : 0, d_in),
         db = empty(x, ScalarType::Float, of_weights ? d_out : 0);
  const Second<Arithmetic, float, false> matrix(weights);
  const Second<Arithmetic, X, false> inputs({x});
  const Y* of_y = pointer<Y>(dy);
  Product<Arithmetic, Y, true, float, false, X> to_x{{of_y, d_out, n}, matrix,          d_out,
                                                     nullptr,          writable<X>(dx), nullptr};
  Product<Arithmetic, Y, false, X, false, float> to_w{
      {of_y, d_out, d_out}, inputs, n, nullptr, writable<float>(dw), writable<float>(db)};
  if (of_x && of_weights)
    run(to_x, to_w);
  else if (of_x)
    run(to_x);
  else if (of_weights)
    run(to_w);
  return {dx, dw, db};
}

Gradients linear_backward(Tensor dy, Tensor x, std::vector<Tensor> weights, bool of_x,
                          bool of_weights) {
  check_tensor(dy, 2, true);
  check_tensor(x, 2, is_narrow(dy));
  const auto by = !is_narrow(dy) ? gradients<Float32, float, float>
                  : is_narrow(x) ? gradients<Pairs, BFloat16, BFloat16>
                                 : gradients<Pairs, BFloat16, float>;
  return by(dy, x, weights, of_x, of_weights);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("linear", TORCH_BOX(&linear));
  library.impl("linear_backward", TORCH_BOX(&linear_backward));
}
