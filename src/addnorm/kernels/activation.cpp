// Activation functions and gated ones, and their gradients, each in one pass over memory.
//
// Numbers are in float32 or bfloat16, and computed in float32:
//   gelu_tanh     x σ(z), z = 2 √(2/π) (x + 0.044715 x³), σ(z) = 1 / (1 + exp(-z))
//   silu          x σ(x)
//   squared_relu  max(x, 0)²

#include "vectors.h"

#include <string>

namespace {

using namespace addnorm;

inline Vector magnitude(Vector x) { return (Vector)((Integers)x & 0x7fffffff); }

// 1 / x for 1 ≤ x ≤ 2
inline Vector inverse(Vector x) {
#ifdef __AVX512F__
  const Vector near = (Vector)_mm512_rcp14_ps((__m512)x);
  return near * (2.f - x * near);
#else
  return 1.f / x;
#endif
}

struct Logistic {
  Vector y, dy;  // σ(z), and σ(z) (1 - σ(z)) without a difference
};

inline Logistic logistic(Vector z) {
  const Vector e = decay(magnitude(z)), t = inverse(1.f + e), other = e * t;
  return {z < 0.f ? other : t, t * other};
}

struct Slope {
  Vector y, dy;  // the function, and its derivative
};

// A derivative is 0 or 1 beyond this, where squares may overflow.
inline Vector within(Vector x) {
  const Vector limit = Vector{} + 1e4f;
  x = x > limit ? limit : x;
  return x < -limit ? -limit : x;
}

struct GELUTanh {
  static constexpr float SCALE = 1.5957691216057308f, CUBIC = 0.044715f;

  static Vector of(Vector x) { return x * logistic(SCALE * x * (1.f + CUBIC * x * x)).y; }

  static Slope with_slope(Vector x) {
    const Vector near = within(x), square = near * near;
    const Logistic s = logistic(SCALE * near * (1.f + CUBIC * square));
    return {x * s.y, s.y + near * s.dy * SCALE * (1.f + 3.f * CUBIC * square)};
  }
};

struct SiLU {
  static Vector of(Vector x) { return x * logistic(x).y; }

  static Slope with_slope(Vector x) {
    const Logistic s = logistic(x);
    return {x * s.y, s.y + within(x) * s.dy};
  }
};

struct SquaredReLU {
  static Vector of(Vector x) { return with_slope(x).y; }

  static Slope with_slope(Vector x) {
    const Vector positive = x < 0.f ? Vector{} : x;  // NaN stays
    return {positive * positive, 2.f * positive};
  }
};

// Calls `pass(offset, n)` for up to WIDTH numbers at a time, of all of `total`, in parallel.
template <typename Pass>
void each(int64_t total, const Pass& pass) {
  torch::stable::parallel_for(0, (total + WIDTH - 1) / WIDTH, 1024, [&](int64_t begin, int64_t end) {
    const int64_t whole = std::min(end, total / WIDTH);
    for (int64_t i = begin; i < whole; ++i) pass(i * WIDTH, std::integral_constant<int64_t, WIDTH>());
    if (whole < end) pass(whole * WIDTH, total - whole * WIDTH);
  });
}

template <typename Number>
struct Tensors {
  const Number *x, *up, *dy;  // up and dy: or null
  Number *y, *dx, *dup;

  template <typename Function>
  void run(int64_t total) const {
    if (dy && up)
      each(total, [this](int64_t i, auto n) {
        const Slope at = Function::with_slope(load(x + i, n));
        const Vector grad = load(dy + i, n);
        store(dup + i, grad * at.y, n);
        store(dx + i, grad * load(up + i, n) * at.dy, n);
      });
    else if (dy)
      each(total, [this](int64_t i, auto n) {
        store(dx + i, load(dy + i, n) * Function::with_slope(load(x + i, n)).dy, n);
      });
    else if (up)
      each(total, [this](int64_t i, auto n) {
        store(y + i, Function::of(load(x + i, n)) * load(up + i, n), n);
      });
    else
      each(total, [this](int64_t i, auto n) { store(y + i, Function::of(load(x + i, n)), n); });
  }

  void run(const std::string& name, int64_t total) const {
    if (name == "gelu_tanh") return run<GELUTanh>(total);
    if (name == "silu") return run<SiLU>(total);
    STD_TORCH_CHECK(name == "squared_relu", "no activation is called ", name);
    run<SquaredReLU>(total);
  }
};

template <typename Number>
Number* writable(const Tensor& of) {
  return static_cast<Number*>(of.mutable_data_ptr());
}

template <typename Number>
void forward(const std::string& name, const Tensor& x, const std::optional<Tensor>& up,
             const Tensor& y) {
  Tensors<Number>{pointer<Number>(x), pointer<Number>(up), nullptr, writable<Number>(y)}.run(
      name, x.numel());
}

template <typename Number>
void backward(const std::string& name, const Tensor& dy, const Tensor& x,
              const std::optional<Tensor>& up, const Tensor& dx, const Tensor& dup) {
  Tensors<Number>{pointer<Number>(x), pointer<Number>(up),  pointer<Number>(dy),
                  nullptr,            writable<Number>(dx), writable<Number>(dup)}
      .run(name, x.numel());
}

Tensor activation(Tensor x, std::optional<Tensor> up, std::string name) {
  Tensor y = torch::stable::empty_like(x);
  (x.scalar_type() == ScalarType::BFloat16 ? forward<BFloat16> : forward<float>)(name, x, up, y);
  return y;
}

std::tuple<Tensor, Tensor> activation_backward(Tensor dy, Tensor x, std::optional<Tensor> up,
                                               std::string name) {
  Tensor dx = torch::stable::empty_like(x), dup = up ? torch::stable::empty_like(x) : dx;
  auto with = x.scalar_type() == ScalarType::BFloat16 ? backward<BFloat16> : backward<float>;
  with(name, dy, x, up, dx, dup);
  return {dx, dup};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("activation", TORCH_BOX(&activation));
  library.impl("activation_backward", TORCH_BOX(&activation_backward));
}
