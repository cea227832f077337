// GPT-2's alphabet: a printable sign for each of the 256 bytes (Radford et al. 2019).

const printing = (byte) =>
  (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte < 0xad) || (byte > 0xad && byte < 0x100);

/** The sign of each byte. */
export const SIGNS = [];
/** The byte of each sign. */
export const BYTES = new Map();

let others = 0x100;
for (let byte = 0; byte < 256; byte++) {
  SIGNS.push(String.fromCharCode(printing(byte) ? byte : others++));
  BYTES.set(SIGNS[byte], byte);
}

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { ignoreBOM: true });

export const utf8 = (text) => encoder.encode(text);
export const textOf = (bytes) => decoder.decode(Uint8Array.from(bytes));
export const signsOf = (text) => Array.from(utf8(text), (byte) => SIGNS[byte]).join('');
