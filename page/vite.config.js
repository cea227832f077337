// The page as one file: the script, the styles and onnxruntime's WebAssembly are inside.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

const runtime = join(
  dirname(createRequire(import.meta.url).resolve('onnxruntime-web/wasm')),
  'ort-wasm-simd-threaded.wasm',
);

/** The runtime is given its binary, so it needs no address of one. */
const withoutAddress = {
  name: 'without-address',
  enforce: 'pre',
  transform(code, id) {
    if (!id.includes('onnxruntime-web')) return null;
    return code.replaceAll(/new URL\(\s*"ort-[\w.-]+",\s*import\.meta\.url\s*\)/g, 'new URL("about:blank")');
  },
};

const singleFile = {
  name: 'single-file',
  enforce: 'post',
  generateBundle(_, bundle) {
    const page = bundle['index.html'];
    for (const [name, file] of Object.entries(bundle)) {
      if (file === page) continue;
      const escaped = name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
      if (file.type === 'chunk') {
        const code = file.code.replaceAll('</script', '<\\/script').replaceAll('<!--', '<\\!--');
        const script = new RegExp(`<script[^>]*src="[^"]*${escaped}"></script>`);
        page.source = page.source.replace(script, '').replace('</body>', () => `<script type="module">${code}</script>\n</body>`);
      } else if (name.endsWith('.css')) {
        const link = new RegExp(`<link[^>]*href="[^"]*${escaped}">`);
        page.source = page.source.replace(link, () => `<style>${file.source}</style>`);
      } else throw new Error(`${name}: does not fit into the page`);
      delete bundle[name];
    }
    const binary = gzipSync(readFileSync(runtime), { level: 9 }).toString('base64');
    const element = `<script type="text/plain" id="addnorm:runtime">${binary}</script>`;
    page.source = page.source.replace('<script type="module">', (script) => `${element}\n<!--addnorm-->\n${script}`);
    page.fileName = 'page.html';
  },
};

export default defineConfig({
  base: './',
  plugins: [svelte({ configFile: false }), withoutAddress, singleFile],
  build: {
    outDir: '../src/addnorm/convert/exporters',
    emptyOutDir: false,
    copyPublicDir: false,
    modulePreload: false,
    target: 'es2022',
    reportCompressedSize: false,
    chunkSizeWarningLimit: 1000,
    rolldownOptions: { checks: { pluginTimings: false } },
  },
});
