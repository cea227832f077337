// Texts as the ids that a model reads, and ids as texts.

import { Tokenizer } from './tokenizer/tokenizer.js';

/** A tokenizer with the special tokens around each text, as Python's `around` has them. */
export class Reader {
  constructor({ tokenizer, before, after, marked, start, unknown }) {
    this.tokenizer = new Tokenizer(tokenizer);
    Object.assign(this, { before, after, marked, start, unknown });
  }

  /** The ids of a text, never none; a long one is cut to `most`, as in training. */
  ids(text, most = null) {
    const plain = this.plain(text);
    const room = most === null ? plain.length : most - this.before.length - this.after.length;
    const ids = [...this.before, ...plain.slice(0, Math.max(room, 0)), ...this.after];
    return ids.length ? ids : [this.start];
  }

  /** The ids of a text alone; a special token that is spelt in it is an unknown word. */
  plain(text) {
    const ids = this.tokenizer.encode(text, this.marked);
    if (this.marked) return ids;
    const unknown = this.unknown === null ? [] : [this.unknown];
    return ids.flatMap((id) => (this.tokenizer.special.has(id) ? unknown : [id]));
  }

  /** The ids of words with the special tokens, and the place of each word's first id. */
  words(words, padding) {
    const ids = [...this.before];
    const places = words.map((word, n) => {
      const place = ids.length;
      const pieces = this.plain(n ? ` ${word}` : word);
      for (const id of pieces.length ? pieces : [this.unknown ?? padding]) ids.push(id);
      return place;
    });
    return { ids: [...ids, ...this.after], places };
  }

  /** The ids of a text with masks, and the place of each. A space before one belongs to it if it `joins`. */
  gaps(text, { mask, masks, joins }) {
    let ids = this.before;
    const places = [];
    const parts = masks.reduce((all, name) => all.flatMap((part) => part.split(name)), [text]);
    parts.forEach((part, n) => {
      if (n) {
        places.push(ids.length);
        ids = ids.concat(mask);
      }
      ids = ids.concat(this.plain(joins && n < parts.length - 1 ? part.replace(/ $/, '') : part));
    });
    return { ids: [...ids, ...this.after], places };
  }

  /** Two texts together, each id with its type; the longer one is cut first, as in training. */
  pair(texts, { special, types, order }, most = null) {
    const sides = texts.map((text) => this.plain(text));
    const length = (side) => sides[side].length;
    const room = (most ?? Infinity) - special.reduce((n, [ids]) => n + ids.length, 0);
    if (length(0) + length(1) > room) {
      const half = Math.floor(room / 2);
      const second = length(0) > length(1) ? Math.min(length(1), half) : room - Math.min(length(0), half);
      sides[0].length = room - second;
      sides[1].length = second;
    }
    const read = { ids: [...special[0][0]], types: [...special[0][1]] };
    order.forEach((side, i) => {
      read.ids = read.ids.concat(sides[side], special[i + 1][0]);
      read.types = read.types.concat(sides[side].map(() => types[side]), special[i + 1][1]);
    });
    return read;
  }

  /** The text that new ids add to those before. */
  added(before, ids) {
    const { tokenizer } = this;
    const start = tokenizer.decode(before);
    return tokenizer.decode([...before, ...ids]).slice(start.length);
  }
}

/** Tokens as words, each with its places: a token that begins with a space begins a word. */
export function wordsOf(pieces) {
  const unspaced = pieces.some((piece) => /[\u3040-\u9fff]/.test(piece));
  if (unspaced || !pieces.some((piece) => piece.startsWith(' '))) {
    return pieces.map((piece, i) => ({ word: piece.trim() || piece, places: [i] }));
  }
  const words = [];
  pieces.forEach((piece, i) => {
    if (piece.startsWith(' ') || !words.length) words.push({ word: piece.trim(), places: [i] });
    else {
      words.at(-1).word += piece;
      words.at(-1).places.push(i);
    }
  });
  return words;
}
