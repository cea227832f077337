// Pre-tokenizers of a tokenizer.json: pieces of text to smaller pieces.

import { signsOf } from './bytes.js';
import { expression, patternOf } from './regex.js';

const GPT2 = expression("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+");
const WORDS = expression('\\w+|[^\\w\\s]+');
const SPACES = /\p{White_Space}/gu;
const MARKS = /[!-/:-@[-`{-~\p{P}]/gu;

/** The parts of a text, each with whether it is a match. */
function parts(text, pattern) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    if (!match[0]) continue;
    if (match.index > end) found.push([text.slice(end, match.index), false]);
    found.push([match[0], true]);
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push([text.slice(end), false]);
  return found;
}

const joined = (groups) => groups.map((group) => group.map(([part]) => part).join(''));

/** What becomes of the parts: `true` marks a delimiter. */
const BEHAVIORS = {
  removed: (all) => all.filter(([, match]) => !match).map(([part]) => part),
  isolated: (all) => all.map(([part]) => part),
  contiguous: (all) => joined(grouped(all, (last, part) => last[1] === part[1])),
  mergedwithprevious: (all) => joined(grouped(all, (last, part) => part[1] && !last[1])),
  mergedwithnext: (all) => joined(grouped(all, (last, part) => last[1] && !part[1])),
};

function grouped(all, together) {
  const groups = [];
  for (const part of all) {
    const last = groups.at(-1)?.at(-1);
    if (last && together(last, part)) groups.at(-1).push(part);
    else groups.push([part]);
  }
  return groups;
}

function splitter(pattern, behavior, invert = false) {
  const arrange = BEHAVIORS[behavior.toLowerCase()];
  return (text) => arrange(parts(text, pattern).map(([part, match]) => [part, match !== invert]));
}

function metaspace({ replacement, prepend_scheme, split }) {
  const cut = splitter(new RegExp(replacement, 'gu'), 'MergedWithNext');
  return (text, isFirst) => {
    text = text.replaceAll(' ', replacement);
    const prepends = prepend_scheme === 'always' || (prepend_scheme === 'first' && isFirst);
    if (prepends && !text.startsWith(replacement)) text = replacement + text;
    return split ?? true ? cut(text) : [text];
  };
}

const inTurn = (steps) => (text, isFirst) =>
  steps.reduce((pieces, step) => pieces.flatMap((piece, i) => step(piece, isFirst && i === 0)), [text]);

const PRE_TOKENIZERS = {
  ByteLevel: ({ add_prefix_space, use_regex }) => (text) => {
    if (add_prefix_space && !text.startsWith(' ')) text = ` ${text}`;
    return (use_regex ?? true ? parts(text, GPT2).map(([part]) => part) : [text]).map(signsOf);
  },
  WhitespaceSplit: () => splitter(SPACES, 'Removed'),
  Whitespace: () => splitter(WORDS, 'Removed', true),
  BertPreTokenizer: () => inTurn([splitter(SPACES, 'Removed'), splitter(MARKS, 'Isolated')]),
  Punctuation: ({ behavior }) => splitter(MARKS, behavior ?? 'Isolated'),
  Digits: ({ individual_digits }) => splitter(/\p{N}/gu, individual_digits ? 'Isolated' : 'Contiguous'),
  Split: ({ pattern, behavior, invert }) => splitter(patternOf(pattern), behavior, invert),
  Metaspace: metaspace,
  Sequence: ({ pretokenizers }) => inTurn(pretokenizers.map(preTokenizerOf)),
};

/** A function of a text, and of whether it begins the whole, to its pieces. */
export function preTokenizerOf(spec) {
  return spec ? PRE_TOKENIZERS[spec.type](spec) : (text) => [text];
}
