// Expressions of the `tokenizers` library (Oniguruma) as JavaScript has them.

const SPACE = '\\t-\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const WORD = '\\p{L}\\p{M}\\p{N}\\p{Pc}';
const CLASSES = { s: SPACE, d: '\\p{Nd}', w: WORD };

/** The expression with Unicode's classes; letters in `(?i:…)` are written in both cases. */
export function expression(source) {
  let text = '';
  let inside = false;
  let either = 0;
  let depth = 0;
  for (let i = 0; i < source.length; i++) {
    const char = source[i];
    if (char === '\\') {
      const name = source[++i];
      const members = CLASSES[name.toLowerCase()];
      if (members === undefined) {
        const property = name.toLowerCase() === 'p' ? source.slice(i + 1).match(/^\{\^?\w+\}/)[0] : '';
        i += property.length;
        text += escaped(name) + property;
      } else if (inside && name !== name.toLowerCase()) {
        throw new Error(`\\${name} in a class of ${source}`);
      } else {
        text += inside ? members : `[${name === name.toLowerCase() ? '' : '^'}${members}]`;
      }
    } else if (!inside && source.startsWith('(?i:', i)) {
      either = ++depth;
      text += '(?:';
      i += 3;
    } else {
      if (inside) inside = char !== ']';
      else if (char === '[') inside = true;
      else if (char === '(') depth++;
      else if (char === ')' && depth-- === either) either = 0;
      text += either && /[a-z]/i.test(char) && !inside ? bothCases(char) : char;
    }
  }
  return new RegExp(text, 'gu');
}

const SYNTAX = /[\^$\\.*+?()[\]{}|/\-pPnrtfvu]/;

function escaped(name) {
  return SYNTAX.test(name) ? `\\${name}` : name;
}

function bothCases(letter) {
  const long = letter.toLowerCase() === 's' ? 'ſ' : '';
  return `[${letter.toLowerCase()}${letter.toUpperCase()}${long}]`;
}

/** The global expression of a pattern: `{String: …}` or `{Regex: …}`. */
export function patternOf({ String: plain, Regex: regex }) {
  return regex === undefined ? new RegExp(plain.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&'), 'gu') : expression(regex);
}
