// Models of a tokenizer.json: a piece of text to ids.

import { utf8 } from './bytes.js';
import { Heap } from './heap.js';

const byteName = (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;

/** The ids of the bytes of a text, if the vocabulary has them all. */
function bytesOf(text, vocab) {
  const ids = Array.from(utf8(text), (byte) => vocab.get(byteName(byte)));
  return ids.includes(undefined) ? undefined : ids;
}

/** Byte-pair encoding (Sennrich et al. 2016, §3.2): the earliest merge first, the leftmost of it. */
function bpe({ vocab: table, merges, unk_token, byte_fallback, fuse_unk, ignore_merges }) {
  const vocab = new Map(Object.entries(table));
  const unknown = vocab.get(unk_token);
  const size = [...vocab.values()].reduce((most, id) => Math.max(most, id), 0) + 1;
  const ranks = new Map();
  merges.forEach((merge, rank) => {
    const [left, right] = typeof merge === 'string' ? merge.split(' ') : merge;
    ranks.set(vocab.get(left) * size + vocab.get(right), [rank, vocab.get(left + right)]);
  });

  function characters(word) {
    const ids = [];
    let unknownLast = false;
    for (const char of word) {
      const known = vocab.has(char) ? [vocab.get(char)] : byte_fallback ? bytesOf(char, vocab) : undefined;
      if (known) ids.push(...known);
      else if (unknown !== undefined && !(unknownLast && fuse_unk)) ids.push(unknown);
      unknownLast = !known;
    }
    return ids;
  }

  function merged(ids) {
    ids = [...ids];
    const n = ids.length;
    const after = ids.map((_, i) => i + 1);
    const before = ids.map((_, i) => i - 1);
    const mergeAt = (i) => (after[i] < n ? ranks.get(ids[i] * size + ids[after[i]]) : undefined);
    const queue = new Heap(); // of rank * n + place: the earliest merge, the leftmost of it
    const propose = (i) => {
      const merge = mergeAt(i);
      if (merge) queue.push(merge[0] * n + i);
    };
    ids.forEach((_, i) => propose(i));
    while (queue.numbers.length) {
      const first = queue.pop();
      const i = first % n;
      const merge = mergeAt(i);
      if (!merge || merge[0] * n + i !== first) continue; // its pair has changed since
      ids[i] = merge[1];
      ids[after[i]] = NaN; // a part of the one before, which no merge has
      after[i] = after[after[i]];
      if (after[i] < n) before[after[i]] = i;
      if (before[i] >= 0) propose(before[i]);
      propose(i);
    }
    return ids.filter((id) => !Number.isNaN(id));
  }

  const kept = new Map();
  return (word) => {
    if (ignore_merges && vocab.has(word)) return [vocab.get(word)];
    let ids = kept.get(word);
    if (ids === undefined) {
      ids = merges.length ? merged(characters(word)) : characters(word);
      if (word.length < 64 && kept.size < 50_000) kept.set(word, ids);
    }
    return ids;
  };
}

/** The likeliest pieces (Kudo 2018, eq. 5). */
function unigram({ vocab: list, unk_id, byte_fallback }) {
  const scores = new Map(list.map(([piece, score], id) => [piece, [id, score]]));
  const vocab = new Map(list.map(([piece], id) => [piece, id]));
  const lowest = list.reduce((least, [, score]) => Math.min(least, score), Infinity) - 10;
  const longest = list.reduce((most, [piece]) => Math.max(most, piece.length), 1);

  return (text) => {
    const best = new Array(text.length + 1); // [score, start, is unknown] of the best way there
    best[0] = [0, 0, false];
    for (let start = 0; start < text.length; ) {
      const one = text.codePointAt(start) > 0xffff ? 2 : 1;
      const before = best[start][0];
      let single = false;
      for (let end = start + one; end <= Math.min(text.length, start + longest); end++) {
        const entry = scores.get(text.slice(start, end));
        if (!entry) continue;
        if (!best[end] || before + entry[1] > best[end][0]) best[end] = [before + entry[1], start, entry[0] === unk_id];
        single ||= end === start + one;
      }
      if (!single && (!best[start + one] || before + lowest > best[start + one][0])) {
        best[start + one] = [before + lowest, start, true];
      }
      start += one;
    }
    const pieces = [];
    let unknownNext = false;
    for (let end = text.length; end > 0; ) {
      const [, start, isUnknown] = best[end];
      const piece = text.slice(start, end);
      if (isUnknown && unknownNext) pieces.push(piece + pieces.pop());
      else pieces.push(piece);
      unknownNext = isUnknown;
      end = start;
    }
    return pieces.reverse().flatMap((piece) => {
      if (vocab.has(piece)) return [vocab.get(piece)];
      return (byte_fallback ? bytesOf(piece, vocab) : undefined) ?? [unk_id];
    });
  };
}

/** The longest piece first, from the left (Wu et al. 2016, §4.1, as in BERT). */
function wordPiece({ vocab: table, unk_token, continuing_subword_prefix, max_input_chars_per_word }) {
  const vocab = new Map(Object.entries(table));
  const unknown = [vocab.get(unk_token)];
  return (word) => {
    const chars = Array.from(word);
    if (chars.length > max_input_chars_per_word) return unknown;
    const ids = [];
    for (let start = 0; start < chars.length; ) {
      let end = chars.length;
      let id;
      for (; end > start; end--) {
        const piece = (start ? continuing_subword_prefix : '') + chars.slice(start, end).join('');
        if ((id = vocab.get(piece)) !== undefined) break;
      }
      if (id === undefined) return unknown;
      ids.push(id);
      start = end;
    }
    return ids;
  };
}

function wordLevel({ vocab: table, unk_token }) {
  const vocab = new Map(Object.entries(table));
  return (word) => [vocab.get(word) ?? vocab.get(unk_token)].filter((id) => id !== undefined);
}

const MODELS = { BPE: bpe, Unigram: unigram, WordPiece: wordPiece, WordLevel: wordLevel };

export const modelOf = (spec) => MODELS[spec.type](spec);

/** The tokens of a model by their ids. */
export function tokensOf({ vocab }) {
  return Array.isArray(vocab)
    ? vocab.map(([token], id) => [id, token])
    : Object.entries(vocab).map(([token, id]) => [id, token]);
}
