// Models that write: the next token's logits, the rules of the recipe, and the choice among them.

import { floats, ints, ones, pastOf } from './graph.js';

/** Ids of a prompt that are read at a time, so that the page stays awake. */
const AT_ONCE = 64;

const lastRow = ({ data, dims }) => data.slice(data.length - dims.at(-1));

/** A text in the making: the logits after its last token, and the attention of that. */
class Text {
  constructor(decoder, inputs) {
    Object.assign(this, { decoder, inputs, past: decoder.emptyPast(), length: 0 });
  }

  async step(ids) {
    this.length += ids.length;
    const mask = ones(this.length);
    const inputs = { input_ids: ints(ids), attention_mask: mask, ...this.inputs, ...this.past };
    const outputs = await this.decoder.run(inputs);
    this.past = pastOf(outputs);
    this.attention = outputs.cross_attention && [...lastRow(outputs.cross_attention)];
    this.logits = lastRow(outputs.logits);
  }
}

/** A decoder that continues ids. */
export class Continuation {
  constructor(decoder) {
    this.decoder = decoder;
  }

  /** The text of some ids; undefined if it is no longer `wanted` before it is read. */
  async start(ids, wanted = () => true) {
    const text = new Text(this.decoder, {});
    for (let i = 0; i < ids.length; i += AT_ONCE) {
      if (!wanted()) return undefined;
      await text.step(ids.slice(i, i + AT_ONCE));
      if (i + AT_ONCE < ids.length) await pause();
    }
    return text;
  }
}

/** An encoder–decoder, whose texts begin with a start token. */
export class Translation {
  constructor(encoder, decoder, startId) {
    Object.assign(this, { encoder, decoder, startId });
  }

  async start(ids) {
    const memory = await this.encoder.run({ input_ids: ints(ids), attention_mask: ones(ids.length) });
    const cross = Object.entries(memory).filter(([name]) => name.startsWith('cross'));
    const mask = ones(memory.last_hidden_state.dims[1]);
    const text = new Text(this.decoder, { encoder_attention_mask: mask, ...Object.fromEntries(cross) });
    await text.step([this.startId]);
    return text;
  }
}

/** Let the page draw, and listen. */
export const pause = () => new Promise((resolve) => setTimeout(resolve));

/** The probabilities of logits. */
export function softmax(logits, temperature = 1) {
  const most = logits.reduce((best, x) => Math.max(best, x), -Infinity);
  const result = Float64Array.from(logits, (x) => Math.exp((x - most) / temperature));
  const total = result.reduce((sum, x) => sum + x, 0);
  return result.map((x) => x / total);
}

/** The ids of the `n` largest numbers, the largest first. */
export function largest(numbers, n) {
  const best = [];
  for (let id = 0; id < numbers.length; id++) {
    if (best.length === n && !(numbers[id] > numbers[best[n - 1]])) continue;
    let place = best.length;
    while (place > 0 && numbers[id] > numbers[best[place - 1]]) place--;
    best.splice(place, 0, id);
    best.length = Math.min(best.length, n);
  }
  return best;
}

/**
 * An id: the likeliest at temperature 0, else drawn from the `topK` likeliest (0 for all), of these
 * from the fewest that together have `topP`, and of these from those at least `minP` times as likely
 * as the likeliest.
 */
export function choose(scores, { temperature, topK = 0, topP = 1, minP = 0 }, random = Math.random) {
  if (!temperature) return largest(scores, 1)[0];
  let allowed = Array.from(scores.keys());
  if (topK || topP < 1) allowed = allowed.sort((one, other) => scores[other] - scores[one]).slice(0, topK || undefined);
  let p = softmax(allowed.map((id) => scores[id]), temperature);
  if (topP < 1) {
    let mass = 0;
    const n = p.findIndex((share) => (mass += share) >= topP) + 1;
    if (n) p = p.subarray(0, n);
  }
  const least = minP * p.reduce((best, share) => Math.max(best, share), 0);
  p = p.map((share) => (share >= least ? share : 0));
  let left = random() * p.reduce((sum, share) => sum + share, 0);
  const place = p.findIndex((share) => (left -= share) < 0);
  return allowed[place < 0 ? p.findLastIndex((share) => share > 0) : place];
}

/** The scores of tokens under the rules of decoding; `history` are the ids so far, `before` new. */
export function ruled(logits, rules, history, before, limit, ends) {
  const scores = Float32Array.from(logits);
  const written = history.length - before;
  const forbid = (ids) => ids.forEach((id) => (scores[id] = -Infinity));
  const force = (id) => scores.fill(-Infinity).fill(0, id, id + 1);
  const penalty = rules.repetition_penalty;
  if (penalty !== 1) {
    new Set(history).forEach((id) => (scores[id] = scores[id] < 0 ? scores[id] * penalty : scores[id] / penalty));
  }
  const n = rules.no_repeat_ngram_size;
  for (let i = n ? n - 1 : history.length; i < history.length; i++) {
    const same = history.slice(history.length + 1 - n).every((id, j) => id === history[i + 1 - n + j]);
    if (same) forbid([history[i]]);
  }
  if (history.length < rules.min_length || written < rules.min_new_tokens) forbid(ends);
  const forced = rules.forced_bos_token_id;
  if (forced !== null && before === 1 && written === 0) force(forced);
  if (rules.forced_eos_token_id !== null && limit === written + 1) force(rules.forced_eos_token_id);
  forbid(rules.suppress_tokens);
  if (written === (forced !== null && before === 1 ? 1 : 0)) forbid(rules.begin_suppress_tokens);
  return scores;
}

/** The most new tokens after so many, by the rules or else `usual`. */
export function limitOf({ max_new_tokens, max_length }, before, usual) {
  return max_new_tokens ?? (max_length === null ? usual : max_length - before);
}

/**
 * Yield each new token: its id, its probability, the attention, the logits it was chosen from.
 * `prompt` are the ids to continue, or the source of a translation; `options` are read anew for
 * each token, so that a person can turn them meanwhile. It ends once it is no longer `wanted`.
 */
export async function* write(model, facts, prompt, options, wanted) {
  const { ends, rules } = facts;
  const history = model instanceof Translation ? [facts.start] : [...prompt];
  const before = history.length;
  const room = facts.positions === null ? Infinity : facts.positions - before + 1;
  const text = await model.start(prompt, wanted);
  for (let n = 1; wanted(); n++) {
    const limit = Math.min(options().limit, room);
    if (n > limit) return;
    const { logits, attention } = text;
    const id = choose(ruled(logits, rules, history, before, limit, ends), options());
    const isEnd = ends.includes(id);
    yield { id, isEnd, logits, attention };
    if (isEnd || n === limit) return;
    history.push(id);
    await pause();
    await text.step([id]);
  }
}
