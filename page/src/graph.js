// Graphs in onnxruntime, on one thread, with weights that are integers turned into numbers once.

import * as ort from 'onnxruntime-web/wasm';
import { bytes } from './payload.js';

let ready;

function runtime() {
  ready ??= bytes('runtime').then((binary) => {
    ort.env.wasm.wasmBinary = binary;
    ort.env.wasm.numThreads = 1;
    ort.env.logLevel = 'error';
  });
  return ready;
}

export class Graph {
  static async open(name) {
    await runtime();
    const options = {
      executionProviders: ['wasm'],
      graphOptimizationLevel: 'all',
      extra: { session: { disable_quant_qdq: '1' } },
    };
    const session = await ort.InferenceSession.create(await bytes(name), options);
    return new Graph(session);
  }

  constructor(session) {
    this.session = session;
    this.shapes = new Map(session.inputMetadata.map(({ name, shape }) => [name, shape]));
  }

  has(name) {
    return this.session.outputNames.includes(name);
  }

  /** The outputs by name, of those inputs that the graph has. */
  async run(inputs) {
    const feeds = {};
    for (const name of this.session.inputNames) feeds[name] = inputs[name];
    return this.session.run(feeds);
  }

  /** The empty past at the start of a text. */
  emptyPast() {
    const past = {};
    for (const [name, [, heads, , width]] of this.shapes) {
      if (name.startsWith('past')) past[name] = floats([], [1, heads, 0, width]);
    }
    return past;
  }
}

export const floats = (values, shape) => new ort.Tensor('float32', Float32Array.from(values), shape);

/** One row of ids. */
export function ints(ids) {
  return new ort.Tensor('int64', BigInt64Array.from(ids, BigInt), [1, ids.length]);
}

export const ones = (n) => ints(new Array(n).fill(1));

/** The present of a step as the past of the next. */
export function pastOf(outputs) {
  const past = {};
  for (const name in outputs) {
    if (name.startsWith('present')) past[name.replace('present', 'past')] = outputs[name];
  }
  return past;
}
