// Attention of one query in each row over keys and values that stay where they are: in slots.
//
// softmax(c tanh(scale q·k / c) + bias) v over the columns that a row may attend to (Kwon et al.
// 2023, arXiv 2309.06180, section 4.3). With sinks, each head has one more score, whose value is
// zero. The heads of a token lie side by side and are read one
// after another, so that memory is read in order; a head that serves several queries is read once
// for all. Consecutive rows may share their slots. The result of a row depends neither on other
// rows nor on the number of threads.

#include "exponentials.h"

#include <atomic>

namespace {

using namespace addnorm;

// The arguments of the operator; widths and strides in numbers.
template <typename Number>
struct Arguments {
  const Number *q, *keys, *values;
  const int64_t* slots;
  const bool* allowed;  // or null
  const float* bias;    // or null
  const float* sinks;   // or null
  Number* mixed;
  int64_t rows, heads, kv_heads, columns, key_width, value_width;
  int64_t sharing;  // how many rows share their slots
  int64_t allowed_row, bias_row, bias_head;
  float scale, softcap;  // softcap 0: none
};

// The work on some key/value heads of one row, and on the query heads that they serve.
//
// Columns are padded to whole vectors: by the last one, whose further weights are zero.
template <typename Number>
class Part {
 public:
  Part(const Arguments<Number>& of, int64_t row, int64_t first, int64_t last)
      : of(of), row(row), first(first), group(of.heads / of.kv_heads), heads((last - first) * group) {
    const int64_t text = row / of.sharing;
    const int64_t* text_slots = of.slots + text * of.columns;
    const bool* allowed = of.allowed ? of.allowed + text * of.allowed_row : nullptr;
    for (int64_t j = 0; j < of.columns; ++j)
      if (!allowed || allowed[j]) columns.push_back(j);
    n = columns.size();
    stride = (n + WIDTH - 1) / WIDTH * WIDTH;
    for (int64_t i = 0; i < stride; ++i)
      slots.push_back(text_slots[columns[std::min(i, n - 1)]]);
    scores.resize(heads * stride);
    mixed.assign(heads * of.value_width, 0.f);
  }

  void run() {
    for (int64_t i = 0; i < stride; i += TOKENS) score(i);
    for (int64_t head = 0; n && head < heads; ++head) softmax(head);
    for (int64_t i = 0; i < stride; i += TOKENS) mix(i);
    Number* to = of.mixed + (row * of.heads + first * group) * of.value_width;
    for (float x : mixed) store(to++, x);
  }

 private:
  static constexpr int64_t TOKENS = 8;  // at a time, in registers

  // scores[head][i] = scale q·k
  void score(int64_t i) {
    const int64_t width = of.key_width;
    const Number* q = of.q + (row * of.heads + first * group) * width;
    const Number* k[TOKENS];
    for (int64_t t = 0; t < TOKENS; ++t) k[t] = of.keys + (slots[i + t] * of.kv_heads + first) * width;
    for (int64_t head = 0; head < heads; ++head, q += width) {
      const int64_t begin = head / group * width;
      Vector totals[TOKENS] = {};
      int64_t d = 0;
      for (; d + WIDTH <= width; d += WIDTH) {
        const Vector x = load(q + d);
        for (int64_t t = 0; t < TOKENS; ++t) totals[t] += x * load(k[t] + begin + d);
      }
      if (int64_t rest = width - d) {
        const Vector x = load(q + d, rest);
        for (int64_t t = 0; t < TOKENS; ++t) totals[t] += x * load(k[t] + begin + d, rest);
      }
      for (int64_t t = 0; t < TOKENS; ++t) scores[head * stride + i + t] = of.scale * sum(totals[t]);
    }
  }

  // scores[head] = softmax(c tanh(scores[head] / c) + bias), with the sink in its denominator
  void softmax(int64_t head) {
    float* x = &scores[head * stride];
    if (of.softcap > 0)
      for (int64_t i = 0; i < stride; i += WIDTH)
        store(x + i, of.softcap * hyperbolic_tangent(load(x + i) / of.softcap));
    if (of.bias) {
      const float* bias = of.bias + row * of.bias_row + (first * group + head) * of.bias_head;
      for (int64_t i = 0; i < n; ++i) x[i] += bias[columns[i]];
    }
    std::fill(x + n, x + stride, -INFINITY);
    const float sink = of.sinks ? of.sinks[first * group + head] : -INFINITY;
    float largest = std::max(sink, *std::max_element(x, x + n));
    Vector total = {};
    for (int64_t i = 0; i < stride; i += WIDTH) {
      Vector e = exponential(load(x + i) - largest);
      store(x + i, e);
      total += e;
    }
    float scale = 1 / (of.sinks ? sum(total) + std::exp(sink - largest) : sum(total));
    for (int64_t i = 0; i < stride; i += WIDTH) store(x + i, load(x + i) * scale);
    std::fill(x + n, x + stride, 0.f);
  }

  // mixed[head] += scores[head][i] v
  void mix(int64_t i) {
    const int64_t width = of.value_width;
    const Number* v[TOKENS];
    for (int64_t t = 0; t < TOKENS; ++t) v[t] = of.values + (slots[i + t] * of.kv_heads + first) * width;
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t begin = head / group * width;
      float weights[TOKENS];
      std::memcpy(weights, &scores[head * stride + i], sizeof weights);
      float* to = &mixed[head * width];
      int64_t d = 0;
      for (; d + WIDTH <= width; d += WIDTH) {
        Vector total = load(to + d);
        for (int64_t t = 0; t < TOKENS; ++t) total += weights[t] * load(v[t] + begin + d);
        store(to + d, total);
      }
      if (int64_t rest = width - d) {
        Vector total = load(to + d, rest);
        for (int64_t t = 0; t < TOKENS; ++t) total += weights[t] * load(v[t] + begin + d, rest);
        std::memcpy(to + d, &total, rest * sizeof(float));
      }
    }
  }

  const Arguments<Number>& of;
  const int64_t row, first, group, heads;
  int64_t n, stride;                     // columns that the row may attend to; padded
  std::vector<int64_t> columns, slots;
  std::vector<float> scores, mixed;
};

template <typename Number>
void run(const Arguments<Number>& of) {
  const int64_t threads = torch::stable::get_num_threads(), rows = std::max<int64_t>(of.rows, 1);
  const int64_t wanted = (2 * threads + rows - 1) / rows;  // parts of a row
  const int64_t heads = std::max<int64_t>((of.kv_heads + wanted - 1) / wanted, 1);
  const int64_t parts = (of.kv_heads + heads - 1) / heads, n = of.rows * parts;
  std::atomic<int64_t> next{0};  // rows differ in length: who is free takes the next
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < n; i = next++) {
      const int64_t first = i % parts * heads;
      Part<Number>(of, i / parts, first, std::min(of.kv_heads, first + heads)).run();
    }
  });
}

template <typename Number>
Tensor attend(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& slots,
              const std::optional<Tensor>& allowed, const std::optional<Tensor>& bias,
              const std::optional<Tensor>& sinks, double scale, std::optional<double> softcap) {
  const int64_t shape[] = {q.size(0), q.size(1), values.size(2)};
  Tensor mixed = torch::stable::new_empty(q, shape);
  Arguments<Number> of = {
      .q = pointer<Number>(q),
      .keys = pointer<Number>(keys),
      .values = pointer<Number>(values),
      .slots = pointer<int64_t>(slots),
      .allowed = pointer<bool>(allowed),
      .bias = pointer<float>(bias),
      .sinks = pointer<float>(sinks),
      .mixed = static_cast<Number*>(mixed.data_ptr()),
      .rows = q.size(0),
      .heads = q.size(1),
      .kv_heads = keys.size(1),
      .columns = slots.size(1),
      .key_width = q.size(2),
      .value_width = values.size(2),
      .sharing = q.size(0) / std::max<int64_t>(slots.size(0), 1),
      .allowed_row = allowed && allowed->size(0) > 1 ? slots.size(1) : 0,
      .bias_row = bias && bias->size(0) > 1 ? bias->size(1) * slots.size(1) : 0,
      .bias_head = bias && bias->size(1) > 1 ? slots.size(1) : 0,
      .scale = static_cast<float>(scale),
      .softcap = static_cast<float>(softcap.value_or(0)),
  };
  run(of);
  return mixed;
}

Tensor paged_attention(Tensor q, Tensor keys, Tensor values, Tensor slots,
                       std::optional<Tensor> allowed, std::optional<Tensor> bias,
                       std::optional<Tensor> sinks, double scale, std::optional<double> softcap) {
  auto with = q.scalar_type() == ScalarType::BFloat16 ? attend<BFloat16> : attend<float>;
  return with(q, keys, values, slots, allowed, bias, sinks, scale, softcap);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("paged_attention", TORCH_BOX(&paged_attention));
}
