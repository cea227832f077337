// Reads lines of JSON, [tokenizer.json, texts, marked], and writes [ids, their text, their pieces] of each text.

import { readFileSync } from 'node:fs';
import { Tokenizer } from '../../../page/src/tokenizer/tokenizer.js';

for (const line of readFileSync(0, 'utf-8').split('\n').filter(Boolean)) {
  const [spec, texts, marked] = JSON.parse(line);
  const tokenizer = new Tokenizer(spec);
  const result = texts.map((text) => {
    const ids = tokenizer.encode(text, marked);
    return [ids, tokenizer.decode(ids), tokenizer.pieces(ids)];
  });
  process.stdout.write(JSON.stringify(result) + '\n');
}
