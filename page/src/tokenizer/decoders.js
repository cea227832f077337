// Decoders of a tokenizer.json: tokens to pieces of text.

import { BYTES, textOf, utf8 } from './bytes.js';
import { patternOf } from './regex.js';

/** Runs of tokens like `<0xE7>` as text; U+FFFD for each byte of a run that is no text. */
function byteFallback(tokens) {
  const result = [];
  let bytes = [];
  const flush = () => {
    if (!bytes.length) return;
    const text = textOf(bytes);
    const isText = text === '' || utf8(text).every((byte, i) => byte === bytes[i]);
    result.push(...(isText ? [text] : bytes.map(() => '\ufffd')));
    bytes = [];
  };
  for (const token of tokens) {
    const byte = token.match(/^<0x([0-9A-Fa-f]{2})>$/);
    if (byte) bytes.push(parseInt(byte[1], 16));
    else {
      flush();
      result.push(token);
    }
  }
  flush();
  return result;
}

function stripped(token, content, start, stop) {
  let chars = Array.from(token);
  let n = 0;
  while (n < start && chars[n] === content) n++;
  chars = chars.slice(n);
  let m = 0;
  while (m < stop && chars.at(-1 - m) === content) m++;
  return chars.slice(0, chars.length - m).join('');
}

const ENDINGS = [
  [' .', '.'], [' ?', '?'], [' !', '!'], [' ,', ','], [" ' ", "'"],
  [" n't", "n't"], [" 'm", "'m"], [' do not', " don't"], [" 's", "'s"], [" 've", "'ve"], [" 're", "'re"],
];

function bytesOfSigns(token) {
  const signs = Array.from(token, (sign) => BYTES.get(sign));
  return signs.includes(undefined) ? [...utf8(token)] : signs;
}

const DECODERS = {
  ByteLevel: () => (tokens) => [textOf(tokens.flatMap(bytesOfSigns))],
  Fuse: () => (tokens) => [tokens.join('')],
  ByteFallback: () => byteFallback,
  Metaspace: ({ replacement, prepend_scheme }) => (tokens) =>
    tokens.map((token, i) => token.replaceAll(replacement, i === 0 && prepend_scheme !== 'never' ? '' : ' ')),
  WordPiece: ({ prefix, cleanup }) => (tokens) =>
    tokens.map((token, i) => {
      if (i > 0) token = token.startsWith(prefix) ? token.slice(prefix.length) : ` ${token}`;
      return cleanup ? ENDINGS.reduce((text, [from, to]) => text.replaceAll(from, to), token) : token;
    }),
  BPEDecoder: ({ suffix }) => (tokens) =>
    tokens.map((token, i) => token.replaceAll(suffix, i === tokens.length - 1 ? '' : ' ')),
  Replace: ({ pattern, content }) => {
    const found = patternOf(pattern);
    return (tokens) => tokens.map((token) => token.replace(found, () => content));
  },
  Strip: ({ content, start, stop }) => (tokens) => tokens.map((token) => stripped(token, content, start, stop)),
  Sequence: ({ decoders }) => {
    const steps = decoders.map(decoderOf);
    return (tokens) => steps.reduce((result, step) => step(result), tokens);
  },
};

export function decoderOf(spec) {
  return spec ? DECODERS[spec.type](spec) : (tokens) => [tokens.join(' ')];
}
