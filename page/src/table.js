// Tables in CSV: the columns by their names, as numbers.

/** Cells that are none are NaN. Quotes are doubled inside of quoted cells (RFC 4180). */
export function columnsOf(text) {
  const rows = rowsOf(text.replace(/^\ufeff/, ''));
  const names = rows.shift() ?? [];
  const whole = rows.filter((row) => row.length > 1 || row[0] !== '');
  return new Map(names.map((name, i) => [name.trim(), whole.map((row) => numberOf(row[i]))]));
}

const numberOf = (cell) => (cell === undefined || cell.trim() === '' ? NaN : Number(cell));

function rowsOf(text) {
  const separator = text.split('\n', 1)[0].includes('\t') ? '\t' : ',';
  const rows = [[]];
  let cell = '';
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const char = text[i];
    if (quoted) {
      if (char !== '"') cell += char;
      else if (text[i + 1] === '"') cell += text[++i];
      else quoted = false;
    } else if (char === '"') quoted = true;
    else if (char === separator || char === '\n') {
      rows.at(-1).push(cell);
      cell = '';
      if (char === '\n') rows.push([]);
    } else if (char !== '\r') cell += char;
  }
  rows.at(-1).push(cell);
  return rows;
}
