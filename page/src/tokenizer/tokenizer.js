// A tokenizer.json of the `tokenizers` library, as far as a page reads it.

import { decoderOf } from './decoders.js';
import { modelOf, tokensOf } from './models.js';
import { normalizerOf } from './normalizers.js';
import { preTokenizerOf } from './pretokenizers.js';

export class Tokenizer {
  constructor(spec) {
    this.normalize = normalizerOf(spec.normalizer);
    this.split = preTokenizerOf(spec.pre_tokenizer);
    this.model = modelOf(spec.model);
    this.join = decoderOf(spec.decoder);
    this.tokens = new Map(tokensOf(spec.model));
    const added = spec.added_tokens ?? [];
    for (const token of added) this.tokens.set(token.id, token.content);
    this.special = new Set(added.filter((token) => token.special).map((token) => token.id));
    // The library finds those that are not normalized first, then the others in normalized text.
    this.added = [false, true].map((normalized) =>
      added
        .filter((token) => token.normalized === normalized)
        .map((token) => ({ ...token, text: normalized ? this.normalize(token.content) : token.content }))
        .filter((token) => token.text),
    );
  }

  /** The ids of a text; where it is `marked`, special tokens that are spelt in it are read. */
  encode(text, marked = false) {
    const parts = this.#found(text, this.added[0], marked, true);
    return parts.flatMap(([part, id, isFirst]) => (id !== undefined ? [id] : this.#plain(part, marked, isFirst)));
  }

  #plain(text, marked, isFirst) {
    const parts = this.#found(this.normalize(text), this.added[1], marked, isFirst);
    return parts.flatMap(([part, id, first]) =>
      id !== undefined ? [id] : this.split(part, first).flatMap((piece) => (piece ? this.model(piece) : [])),
    );
  }

  /** The parts of a text between and at added tokens: the leftmost, the longest of these. */
  #found(text, tokens, marked, isFirst) {
    const wanted = tokens.filter((token) => marked || !token.special);
    const parts = [];
    let start = 0;
    const add = (end, id) => {
      if (end > start || id !== undefined) parts.push([text.slice(start, end), id, isFirst && start === 0]);
    };
    for (let i = 0; wanted.length && i < text.length; ) {
      const token = wanted
        .filter((each) => text.startsWith(each.text, i))
        .reduce((best, each) => (each.text.length > (best?.text.length ?? 0) ? each : best), undefined);
      if (!token) {
        i++;
        continue;
      }
      const before = token.lstrip ? text.slice(start, i).search(/\p{White_Space}+$/u) : -1;
      add(before < 0 ? i : start + before, undefined);
      i += token.text.length;
      if (token.rstrip) i += text.slice(i).match(/^\p{White_Space}*/u)[0].length;
      parts.push(['', token.id, false]);
      start = i;
    }
    add(text.length, undefined);
    return parts;
  }

  isText(id) {
    return this.tokens.has(id) && !this.special.has(id);
  }

  /** The text of ids, without special tokens. */
  decode(ids) {
    return this.join(ids.filter((id) => this.isText(id)).map((id) => this.tokens.get(id))).join('');
  }

  /** A readable text of each id: its token where it is a part of a character. */
  pieces(ids) {
    return ids.map((id) => {
      const name = this.tokens.get(id) ?? '';
      const text = this.special.has(id) ? name : this.join([name]).join('');
      return text.includes('\ufffd') ? name : text;
    });
  }
}
