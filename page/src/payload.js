// What Python has put into the page: gzipped files in base64, one script element each.

const element = (name) => document.getElementById(`addnorm:${name}`);

export const has = (name) => element(name) !== null;

export async function bytes(name) {
  const data = await fetch(`data:application/octet-stream;base64,${element(name).textContent.trim()}`);
  const plain = data.body.pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

export async function json(name) {
  return JSON.parse(new TextDecoder().decode(await bytes(name)));
}
