// Attention of a few queries of each text over cached keys and values, which stay where they are.
//
// softmax(c tanh(scale q·k / c) + bias) v over the columns that a query may attend to: all slots of a
// text, or some in a buffer for many texts (Kwon et al. 2023, arXiv 2309.06180, section 4.3). With
// sinks, each head has one more score, whose value is zero. Keys are read token by token, of some
// heads side by side, so that a processor fetches ahead whether heads or tokens are adjacent. The
// result of a text depends neither on others nor on the number of threads; what one query may attend
// to changes others of its text by the order of their sums alone.

#include "cached_attention.h"

#include <atomic>

namespace {

using namespace addnorm;

template <typename Number, typename Stored>
void see(const Arguments<Number, Stored>& of, int64_t text, Seen& seen) {
  const int64_t* slots = of.slots.at(text);
  seen.columns.resize(of.columns), seen.slots.resize(of.columns), seen.n = 0;
  for (int64_t column = 0; column < of.columns; ++column) {
    bool allowed = !of.allowed.data;
    for (int64_t i = 0; !allowed && i < of.queries; ++i) allowed = of.allowed.at(text, i)[column];
    seen.columns[seen.n] = column;
    seen.slots[seen.n] = slots ? slots[column] : column;
    seen.n += allowed;
  }
}

// The work on some rows of one text after another.
template <typename Number, typename Stored>
struct Pass {
  Seen seen;
  std::vector<Block<Number, Stored>> blocks;

  void run(const Arguments<Number, Stored>& of, int64_t text, int64_t first, int64_t last) {
    see(of, text, seen);
    blocks.resize((last - first + ROWS - 1) / ROWS);
    for (Block<Number, Stored>& block : blocks) {
      block.start(of, text, first, last);
      block.read(seen);
      first += ROWS;
    }
    for (int64_t i = 0; i < seen.n; ++i)
      for (Block<Number, Stored>& block : blocks) block.score(i);
    for (Block<Number, Stored>& block : blocks) block.take_exponentials();
    for (int64_t i = 0; i < seen.n; i += WIDTH)
      for (Block<Number, Stored>& block : blocks) block.mix(i, std::min(seen.n, i + WIDTH));
    for (Block<Number, Stored>& block : blocks) block.put();
  }
};

// Some rows of a text at a time: all where the heads of a token are adjacent, else of four heads.
template <typename Number, typename Stored>
void run(const Arguments<Number, Stored>& of, int64_t texts) {
  const int64_t rows = of.heads * of.queries, threads = torch::stable::get_num_threads();
  if (!texts || !rows) return;
  const bool is_by_token = of.keys.strides[1] < of.keys.strides[2];
  const int64_t of_heads = ROWS * of.queries * (of.heads / of.kv_heads);
  const int64_t most = is_by_token ? rows : of_heads, busy = (2 * threads + texts - 1) / texts;
  const int64_t parts = std::max((rows + most - 1) / most, busy);
  const int64_t some = (rows + parts - 1) / parts, units = (rows + some - 1) / some;
  std::atomic<int64_t> next{0};  // texts differ in columns: who is free takes the next
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    Pass<Number, Stored> pass;
    for (int64_t i = next++; i < texts * units; i = next++) {
      const int64_t first = i % units * some;
      pass.run(of, i / units, first, std::min(rows, first + some));
    }
  });
}

template <typename Number, typename Stored>
Tensor attend(const Tensor& q, const Tensor& keys, const Tensor& values,
              const std::optional<Tensor>& slots, const std::optional<Tensor>& allowed,
              const std::optional<Tensor>& bias, const std::optional<Tensor>& sinks, double scale,
              std::optional<double> softcap) {
  const int64_t shape[] = {q.size(0), q.size(1), q.size(2), values.size(3)};
  Tensor mixed = torch::stable::new_empty(q, shape);
  const Arguments<Number, Stored> of = {
      .q = Rows<const Number>(q),
      .keys = Rows<const Stored>(keys),
      .values = Rows<const Stored>(values),
      .slots = Rows<const int64_t>(slots),
      .allowed = Rows<const bool>(allowed),
      .bias = Rows<const float>(bias),
      .sinks = pointer<float>(sinks),
      .mixed = Rows<Number>(mixed),
      .queries = q.size(1),
      .heads = q.size(2),
      .kv_heads = keys.size(1),
      .columns = slots ? slots->size(1) : keys.size(2),
      .key_width = q.size(3),
      .value_width = values.size(3),
      .scale = float(scale),
      .softcap = float(softcap.value_or(0)),
  };
  run(of, q.size(0));
  return mixed;
}

Tensor cached_attention(Tensor q, Tensor keys, Tensor values, std::optional<Tensor> slots,
                        std::optional<Tensor> allowed, std::optional<Tensor> bias,
                        std::optional<Tensor> sinks, double scale, std::optional<double> softcap) {
  check(q.dim() == 4 && keys.dim() == 4 && values.dim() == 4 && values.size(1) == keys.size(1));
  const int64_t texts = q.size(0), queries = q.size(1), heads = q.size(2), n_slots = keys.size(2);
  const int64_t columns = slots ? slots->size(slots->dim() - 1) : n_slots;
  const bool is_narrow = q.scalar_type() == ScalarType::BFloat16;
  const bool is_stored_narrow = is_narrow || keys.scalar_type() == ScalarType::BFloat16;
  const ScalarType type = is_narrow ? ScalarType::BFloat16 : ScalarType::Float;
  const ScalarType stored = is_stored_narrow ? ScalarType::BFloat16 : ScalarType::Float;
  check_rows(q, type, {texts, queries, heads, keys.size(3)});
  check_rows(keys, stored, {texts, keys.size(1), n_slots, q.size(3)});
  check_rows(values, stored, {texts, keys.size(1), n_slots, values.size(3)});
  check(keys.size(1) ? heads % keys.size(1) == 0 : !heads);
  check(values.size(2) == n_slots);
  if (slots) check_rows(*slots, ScalarType::Long, {texts, columns});
  if (allowed) check_rows(*allowed, ScalarType::Bool, {texts, queries, columns});
  if (bias) check_rows(*bias, ScalarType::Float, {texts, heads, queries, columns});
  if (sinks) check_numbers(*sinks, {ScalarType::Float});
  check(!sinks || sinks->numel() == heads);
  auto with = is_narrow          ? attend<BFloat16, BFloat16>
              : is_stored_narrow ? attend<float, BFloat16>
                                 : attend<float, float>;
  return with(q, keys, values, slots, allowed, bias, sinks, scale, softcap);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(addnorm, CPU, library) {
  library.impl("cached_attention", TORCH_BOX(&cached_attention));
}
