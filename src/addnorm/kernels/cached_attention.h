// Rows of attention over cached keys and values, four at a time.

#pragma once

#include "exponentials.h"
#include "rows.h"

namespace addnorm {

constexpr int64_t ROWS = 4;   // at a time
constexpr int64_t LATER = 4;  // tokens, after which keys that are asked for now are read

// Numbers of queries and of the result, and those of keys and values.
template <typename Number, typename Stored>
struct Arguments {
  Rows<const Number> q;             // [text, query, head]
  Rows<const Stored> keys, values;  // [text, kv_head, slot]
  Rows<const int64_t> slots;        // [text]; or null: the first ones in order
  Rows<const bool> allowed;         // [text, query]; or null
  Rows<const float> bias;           // [text, head, query]; or null
  const float* sinks;               // or null
  Rows<Number> mixed;               // as q
  int64_t queries, heads, kv_heads, columns, key_width, value_width;
  float scale, softcap;             // softcap 0: none
};

// The columns of a text that some query may attend to, and their slots.
struct Seen {
  int64_t n;
  std::vector<int64_t> columns, slots;
};

inline int64_t whole(int64_t width) { return (width + WIDTH - 1) / WIDTH * WIDTH; }

inline Vector repeated(Four x) {
  const Four four[] = {x, x, x, x};
  return bits_as<Vector>(four);
}

// The result of a function for the quarters of a vector.
template <typename Function>
inline Four of_quarters(const Function& f, Vector x) {
  Four four[4];
  std::memcpy(four, &x, sizeof x);
  return f(f(four[0], four[1]), f(four[2], four[3]));
}

// Four rows of the result of a text, the queries of a head one after another.
template <typename Number, typename Stored>
class Block {
 public:
  // From `first` on; the last one is repeated.
  void start(const Arguments<Number, Stored>& arguments, int64_t next, int64_t first, int64_t last) {
    of = &arguments, text = next;
    const int64_t width = whole(of->key_width);
    q.resize(ROWS * width);
    mixed.assign(ROWS * whole(of->value_width), 0.f);
    for (int64_t r = 0; r < ROWS; ++r) {
      const int64_t row = std::min(first + r, last - 1);
      head[r] = row / of->queries, query[r] = row % of->queries;
      kv_head[r] = head[r] / (of->heads / of->kv_heads);
      for (int64_t d = 0; d < width; d += WIDTH)
        store(&q[r * width + d], load_some(of->q.at(text, query[r], head[r]), d, of->key_width));
    }
    is_shared = kv_head[0] == kv_head[ROWS - 1];
  }

  void read(const Seen& of_text) {
    seen = &of_text;
    scores.assign(whole(seen->n * ROWS), 0.f);
  }

  // scores[i] = scale q·k
  void score(int64_t i) { is_shared ? score<1>(i) : score<ROWS>(i); }

  // scores = exp(c tanh(scores / c) + bias - the largest); the sink is in their total
  void take_exponentials() {
    float* x = scores.data();
    const int64_t n = seen->n, end = scores.size();
    if (of->softcap > 0)
      for (int64_t i = 0; i < end; i += WIDTH)
        store(x + i, of->softcap * hyperbolic_tangent(load(x + i) / of->softcap));
    std::fill(x + n * ROWS, x + end, -INFINITY);
    Four sinks = Four{} - INFINITY;
    for (int64_t r = 0; r < ROWS; ++r) {
      const float* bias = of->bias.at(text, head[r], query[r]);
      const bool* allowed = of->queries > 1 ? of->allowed.at(text, query[r]) : nullptr;
      for (int64_t i = 0; bias && i < n; ++i) x[i * ROWS + r] += bias[seen->columns[i]];
      for (int64_t i = 0; allowed && i < n; ++i)
        if (!allowed[seen->columns[i]]) x[i * ROWS + r] = -INFINITY;
      if (of->sinks) sinks[r] = of->sinks[head[r]];
    }
    Vector most = repeated(sinks), sum = {};
    for (int64_t i = 0; i < end; i += WIDTH) most = larger(most, load(x + i));
    Four largest = of_quarters(larger<Four>, most);
    largest = largest == -INFINITY ? Four{} : largest;  // there is nothing to attend to
    for (int64_t i = 0; i < end; i += WIDTH) {
      const Vector score = load(x + i), power = exponential(score - repeated(largest));
      const Vector e = score == -INFINITY ? Vector{} : power;  // exactly zero
      store(x + i, e);
      sum += e;
    }
    total = of_quarters([](Four a, Four b) { return a + b; }, sum);
    for (int64_t r = 0; of->sinks && r < ROWS; ++r) total[r] += std::exp(sinks[r] - largest[r]);
  }

  // mixed += scores[i] v, of some columns
  void mix(int64_t begin, int64_t end) {
    is_shared ? mix_parts<1>(begin, end) : mix_parts<ROWS>(begin, end);
  }

  void put() const {
    for (int64_t r = 0; r < ROWS; ++r) {
      const float scale = total[r] == 0 ? 0 : 1 / total[r];
      for (int64_t d = 0; d < of->value_width; d += WIDTH)
        store(of->mixed.at(text, query[r], head[r]) + d,
              load(&mixed[r * whole(of->value_width) + d]) * scale,
              std::min(WIDTH, of->value_width - d));
    }
  }

 private:
  static constexpr int64_t VECTORS = LANES == WIDTH ? 4 : 1;  // at a time, in registers

  // HEADS is one if all rows read the same keys and values.
  template <int64_t HEADS>
  void score(int64_t i) {
    const int64_t width = whole(of->key_width), slot = seen->slots[i];
    const int64_t next = seen->slots[std::min(i + LATER, seen->n - 1)];
    const Stored *k[HEADS], *later[HEADS];
    for (int64_t h = 0; h < HEADS; ++h) {
      k[h] = of->keys.at(text, kv_head[h], slot);
      later[h] = of->keys.at(text, kv_head[h], next);
    }
    const float* queries = q.data();
    Vector totals[ROWS] = {};
    auto add = [&](int64_t d, int64_t some) __attribute__((always_inline)) {
      Vector x[HEADS];
#pragma GCC unroll 4
      for (int64_t h = 0; h < HEADS; ++h) {
        x[h] = load(k[h] + d, some);
        to_second_cache(later[h] + d);
      }
#pragma GCC unroll 4
      for (int64_t r = 0; r < ROWS; ++r) totals[r] += load(queries + r * width + d) * x[r % HEADS];
    };
    int64_t d = 0;
    for (; d + WIDTH <= of->key_width; d += WIDTH) add(d, WIDTH);
    if (d < of->key_width) add(d, of->key_width - d);
    const Four four = of->scale * sums(totals[0], totals[1], totals[2], totals[3]);
    std::memcpy(&scores[i * ROWS], &four, sizeof four);
  }

  template <int64_t HEADS>
  void mix_parts(int64_t begin, int64_t end) {
    const int64_t width = of->value_width;
    int64_t d = 0;
    for (; d + VECTORS * WIDTH <= width; d += VECTORS * WIDTH)
      mix_part<HEADS, VECTORS>(begin, end, d, WIDTH);
    for (; d < width; d += WIDTH) mix_part<HEADS, 1>(begin, end, d, std::min(WIDTH, width - d));
  }

  // Of N vectors from d on, of some numbers each.
  template <int64_t HEADS, int64_t N>
  __attribute__((always_inline)) void mix_part(int64_t begin, int64_t end, int64_t d, int64_t some) {
    Vector totals[ROWS][N];
    const int64_t width = whole(of->value_width);
    for (int64_t r = 0; r < ROWS; ++r)
      for (int64_t c = 0; c < N; ++c) totals[r][c] = load(&mixed[r * width + d + c * WIDTH]);
    for (int64_t i = begin; i < end; ++i) {
      const float* weights = &scores[i * ROWS];
      const int64_t slot = seen->slots[i], next = seen->slots[std::min(i + WIDTH, seen->n - 1)];
#pragma GCC unroll 4
      for (int64_t h = 0; h < HEADS; ++h) {
        const Stored* v = of->values.at(text, kv_head[h], slot) + d;
        const Stored* later = of->values.at(text, kv_head[h], next) + d;
#pragma GCC unroll 4
        for (int64_t c = 0; c < N; ++c) {
          const Vector x = load(v + c * WIDTH, some);
          to_second_cache(later + c * WIDTH);
#pragma GCC unroll 4
          for (int64_t r = h; r < ROWS; r += HEADS) totals[r][c] += weights[r] * x;
        }
      }
    }
    for (int64_t r = 0; r < ROWS; ++r)
      for (int64_t c = 0; c < N; ++c) store(&mixed[r * width + d + c * WIDTH], totals[r][c]);
  }

  const Arguments<Number, Stored>* of;
  const Seen* seen;
  int64_t text, head[ROWS], kv_head[ROWS], query[ROWS];
  bool is_shared;
  std::vector<float> q;       // [ROWS, whole vectors of key_width]
  std::vector<float> scores;  // [columns, ROWS], in whole vectors
  std::vector<float> mixed;   // [ROWS, whole vectors of value_width], not yet divided by the total
  Four total;
};

}  // namespace addnorm
