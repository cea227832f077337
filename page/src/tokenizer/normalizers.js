// Normalizers of a tokenizer.json: text to text.

import { patternOf } from './regex.js';

const lower = (text) => Array.from(text, (char) => char.toLowerCase()).join('');
const unaccented = (text) => text.replace(/\p{Mn}/gu, '');

const CHINESE =
  /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/gu;

function bert({ clean_text, handle_chinese_chars, strip_accents, lowercase }) {
  return (text) => {
    if (clean_text) {
      text = text.replace(/[\0\ufffd]|(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}]/gu, '').replace(/\p{White_Space}/gu, ' ');
    }
    if (handle_chinese_chars) text = text.replace(CHINESE, ' $& ');
    if (strip_accents ?? lowercase) text = unaccented(text.normalize('NFD'));
    return lowercase ? lower(text) : text;
  };
}

const form = (name) => () => (text) => text.normalize(name);

const NORMALIZERS = {
  NFC: form('NFC'),
  NFD: form('NFD'),
  NFKC: form('NFKC'),
  NFKD: form('NFKD'),
  Lowercase: () => lower,
  StripAccents: () => unaccented,
  BertNormalizer: bert,
  Prepend: ({ prepend }) => (text) => (text ? prepend + text : text),
  Replace: ({ pattern, content }) => {
    const found = patternOf(pattern);
    return (text) => text.replace(found, () => content);
  },
  Strip: ({ strip_left, strip_right }) => (text) => {
    if (strip_left) text = text.replace(/^\p{White_Space}+/u, '');
    return strip_right ? text.replace(/\p{White_Space}+$/u, '') : text;
  },
  Precompiled: ({ precompiled_charsmap }) => precompiled(precompiled_charsmap),
  Sequence: ({ normalizers }) => {
    const steps = normalizers.map(normalizerOf);
    return (text) => steps.reduce((result, step) => step(result), text);
  },
};

export function normalizerOf(spec) {
  return spec ? NORMALIZERS[spec.type](spec) : (text) => text;
}

/** SentencePiece's map of characters: a trie in an array (Aoe 1989), then the texts it leads to. */
function precompiled(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const trie = new Uint32Array(bytes.slice(4, 4 + size).buffer);
  const texts = bytes.subarray(4 + size);
  const encoder = new TextEncoder();
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  const segments = new Intl.Segmenter('en', { granularity: 'grapheme' });

  const offset = (unit) => (unit >>> 10) << ((unit & 0x200) >>> 6);
  function mapped(key) {
    let node = offset(trie[0]);
    for (const byte of key) {
      if (byte === 0) return undefined;
      node ^= byte;
      const unit = trie[node];
      if ((unit & 0x800000ff) >>> 0 !== byte) return undefined;
      node ^= offset(unit);
      if ((unit >>> 8) & 1) {
        const start = trie[node] & 0x7fffffff;
        return decoder.decode(texts.subarray(start, texts.indexOf(0, start)));
      }
    }
    return undefined;
  }

  return (text) => {
    let result = '';
    for (const { segment } of segments.segment(text)) {
      const key = encoder.encode(segment);
      const whole = key.length < 6 ? mapped(key) : undefined;
      result += whole ?? Array.from(segment, (char) => mapped(encoder.encode(char)) ?? char).join('');
    }
    return result;
  };
}
