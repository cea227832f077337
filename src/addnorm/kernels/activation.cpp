// Activation functions and gated ones, and their gradients, each in one pass over memory.
//
// Numbers are in float32 or bfloat16, and computed in float32:
//   gelu_tanh     x σ(z), z = 2 √(2/π) (x + 0.044715 x³), σ(z) = 1 / (1 + exp(-z))
//   silu          x σ(x)
//   squared_relu  max(x, 0)²

#include "exponentials.h"

#include <string>

namespace {

using namespace addnorm;

// 1 / x for 1 ≤ x
inline Register inverse(Register x) {
#ifdef __AVX512F__
  const Register near = (Register)_mm512_rcp14_ps((__m512)x);
  return near * (2.f - x * near);
#else
  return 1.f / x;
#endif
}

struct Logistic {
  Register y, dy;  // σ(z), and σ(z) (1 - σ(z)) without a difference
};

// For -z / log(2), from -126 to 126.
inline Logistic logistic(Register exponent) {
  const Register e = power_of_two(exponent), y = inverse(1.f + e);
  return {y, y * (e * y)};
}

constexpr float LOG2E = 1.44269504f;

// Functions and their derivatives; beyond ± FAR, a derivative is 0 or 1, where squares may overflow.
struct GELUTanh {
  static constexpr float FAR = 10.f, SCALE = 1.5957691216057308f, CUBIC = 0.044715f;

  static Logistic gate(Register near) {
    constexpr float factor = -LOG2E * SCALE;
    return logistic(near * (factor + factor * CUBIC * (near * near)));
  }

  static Register of(Register x) {
    const Register above = at_least(x, -FAR);
    return above * gate(at_most(above, FAR)).y;
  }

  static Register slope(Register x) {
    const Register near = at_most(at_least(x, -FAR), FAR);
    const Logistic s = gate(near);
    return s.y + s.dy * (near * (SCALE + 3.f * CUBIC * SCALE * (near * near)));
  }
};

struct SiLU {
  static constexpr float FAR = 87.f;

  static Register of(Register x) {
    const Register above = at_least(x, -FAR);
    return above * logistic(at_most(above, FAR) * -LOG2E).y;
  }

  static Register slope(Register x) {
    const Register near = at_most(at_least(x, -FAR), FAR);
    const Logistic s = logistic(near * -LOG2E);
    return s.y + near * s.dy;
  }
};

struct SquaredReLU {
  static Register of(Register x) { return at_least(x, 0.f) * at_least(x, 0.f); }

  static Register slope(Register x) { return 2.f * at_least(x, 0.f); }
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
    using Part = const Register&;
    if (dy && up)
      each(total, [this](int64_t i, auto n) {
        const Vector at = load(x + i, n), by = load(up + i, n), grad = load(dy + i, n);
        store(dup + i, in_registers([](Part x, Part dy) { return dy * Function::of(x); }, at, grad), n);
        auto gradient = [](Part x, Part up, Part dy) { return dy * up * Function::slope(x); };
        store(dx + i, in_registers(gradient, at, by, grad), n);
      });
    else if (dy)
      each(total, [this](int64_t i, auto n) {
        store(dx + i, in_registers([](Part x, Part dy) { return dy * Function::slope(x); },
                                   load(x + i, n), load(dy + i, n)), n);
      });
    else if (up)
      each(total, [this](int64_t i, auto n) {
        store(y + i, in_registers([](Part x, Part up) { return Function::of(x) * up; },
                                  load(x + i, n), load(up + i, n)), n);
      });
    else
      each(total, [this](int64_t i, auto n) {
        store(y + i, in_registers(Function::of, load(x + i, n)), n);
      });
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

void check_alike(const Tensor& x, const Tensor& y) {
  check_same_sizes(x, y);
  check_numbers(y, {x.scalar_type()});
}

void check_inputs(const Tensor& x, const std::optional<Tensor>& up) {
  check_numbers(x, {ScalarType::Float, ScalarType::BFloat16});
  if (up) check_alike(x, *up);
}

Tensor activation(Tensor x, std::optional<Tensor> up, std::string name) {
  check_inputs(x, up);
  Tensor y = torch::stable::empty_like(x);
  (x.scalar_type() == ScalarType::BFloat16 ? forward<BFloat16> : forward<float>)(name, x, up, y);
  return y;
}

std::tuple<Tensor, Tensor> activation_backward(Tensor dy, Tensor x, std::optional<Tensor> up,
                                               std::string name) {
  check_inputs(x, up);
  check_alike(x, dy);
  const int64_t none[] = {0};
  Tensor dx = torch::stable::empty_like(x),
         dup = up ? torch::stable::empty_like(x) : torch::stable::new_empty(x, none);
  auto with = x.scalar_type() == ScalarType::BFloat16 ? backward<BFloat16> : backward<float>;
  with(name, dy, x, up, dx, dup);
  return {dx, dup};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("activation", TORCH_BOX(&activation));
  library.impl("activation_backward", TORCH_BOX(&activation_backward));
}
