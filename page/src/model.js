// The view of the page's task, with the graphs and tokenizers that it uses.

import { Graph } from './graph.js';
import { has } from './payload.js';
import { Reader } from './reading.js';
import { Continuation, Translation } from './writing.js';
import Classify from './views/Classify.svelte';
import Compare from './views/Compare.svelte';
import Continue from './views/Continue.svelte';
import Draw from './views/Draw.svelte';
import Fill from './views/Fill.svelte';
import Forecast from './views/Forecast.svelte';
import Tag from './views/Tag.svelte';
import Translate from './views/Translate.svelte';

const VIEWS = {
  continue: Continue,
  translate: Translate,
  classify: Classify,
  tag: Tag,
  compare: Compare,
  draw: Draw,
  fill: Fill,
  forecast: Forecast,
};

export async function opened(facts) {
  const graph = async (name) => (has(name) ? Graph.open(name) : undefined);
  const encoder = (await graph('encoder_model.onnx')) ?? (await graph('model.onnx'));
  const decoder = await graph('decoder_model.onnx');
  const writer = !decoder
    ? undefined
    : encoder
      ? new Translation(encoder, decoder, facts.start)
      : new Continuation(decoder);
  const source = facts.source && new Reader(facts.source);
  const target = facts.target ? new Reader(facts.target) : source;
  return { View: VIEWS[facts.view], encoder, writer, source, target };
}
