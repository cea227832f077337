"""Translations by every exported form of a translator, and how many differ.

python benchmarks/exported.py runs/multi30k-marian --data.root DATA

Ours, Hugging Face transformers, CTranslate2 and onnxruntime translate the test set greedily; all
but the last also by beam search. Length penalties differ between libraries, so beams are compared
without one, where scores are plain log-probabilities. A difference is shown with both scores.
"""

import argparse
import json
import platform
import tempfile
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from addnorm.data.examples import source_text
from addnorm.data.ids.framing import encode_for_task
from addnorm.generate import BeamConfig, DecodingConfig, GreedyConfig, translate
from addnorm.models import EncoderDecoderModel
from addnorm.runs.export import export_run
from addnorm.runs.run import Run

RESULTS = Path(__file__).parent / "results"
BEAM = BeamConfig(beams=5, length_penalty=0.0, width="constant")
NEW = 60

Ids = list[int]
Write = Callable[[Sequence[Ids], int], list[Ids]]


def of_ours(model: EncoderDecoderModel, run: Run) -> Write:
    """Greedy with one beam, else beam search."""
    target = run.tokenizers.target

    def write(sources: Sequence[Ids], beams: int) -> list[Ids]:
        decoding: DecodingConfig = GreedyConfig() if beams == 1 else BEAM
        translations = translate(
            model,
            sources,
            decoding,
            max_new_tokens=NEW,
            bos_id=target.bos_id,
            eos_id=target.eos_id,
        )
        return [list(best[0].ids) for best in translations]

    return write


def of_transformers(folder: Path, run: Run) -> Write:
    """`generate` of transformers."""
    import transformers

    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    target = run.tokenizers.target
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=target.bos_id,
        decoder_start_token_id=target.bos_id,
        eos_token_id=target.eos_id,
        pad_token_id=target.pad_id,
        max_new_tokens=NEW,
        do_sample=False,
        length_penalty=0.0,
    )

    def write(sources: Sequence[Ids], beams: int) -> list[Ids]:
        written: list[Ids] = []
        for first in range(0, len(sources), 50):
            rows = sources[first : first + 50]
            width = max(map(len, rows))
            ids = torch.tensor([r + [target.pad_id] * (width - len(r)) for r in rows])
            real = torch.arange(width) < torch.tensor([len(r) for r in rows])[:, None]
            out = model.generate(ids, attention_mask=real.long(), num_beams=beams)
            written += [_until(row, target.eos_id) for row in out[:, 1:].tolist()]
        return written

    return write


def of_ctranslate2(folder: Path, run: Run) -> Write:
    """`translate_batch` of CTranslate2, which takes and gives tokens, and adds the end itself."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), compute_type="float32")
    source, target = run.tokenizers.source.inner, run.tokenizers.target.inner

    def write(sources: Sequence[Ids], beams: int) -> list[Ids]:
        tokens = [[source.id_to_token(i) for i in row[:-1]] for row in sources]
        results = translator.translate_batch(
            tokens, beam_size=beams, length_penalty=0.0, max_decoding_length=NEW
        )
        return [[target.token_to_id(token) for token in r.hypotheses[0]] for r in results]

    return write


def of_onnx(folder: Path, run: Run) -> Write:
    """A greedy loop over the two graphs, row by row, with the cache that they hand on."""
    import onnxruntime

    target = run.tokenizers.target
    encoder, decoder = (
        onnxruntime.InferenceSession(folder / f"{name}_model.onnx")
        for name in ("encoder", "decoder")
    )
    wanted = [value.name for value in decoder.get_inputs()]
    empty = {
        value.name: np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        for value in decoder.get_inputs()
        if value.name.startswith("past")
    }

    def run_of(graph: onnxruntime.InferenceSession, feed: dict[str, np.ndarray]) -> dict:
        names = [value.name for value in graph.get_outputs()]
        return dict(zip(names, graph.run(names, feed), strict=True))

    def greedy(row: Ids) -> Ids:
        ids, mask = np.array([row]), np.ones((1, len(row)), np.int64)
        held = run_of(encoder, {"input_ids": ids, "attention_mask": mask})
        held |= empty | {"encoder_attention_mask": mask}
        written = [target.bos_id]
        while len(written) <= NEW and written[-1] != target.eos_id:
            held |= {
                "input_ids": np.array([written[-1:]]),
                "attention_mask": np.ones((1, len(written)), np.int64),
            }
            out = run_of(decoder, {name: held[name] for name in wanted})
            written.append(int(out["logits"][0, -1].argmax()))
            held |= {k.replace("present", "past"): v for k, v in out.items() if k != "logits"}
        return _until(written[1:], target.eos_id)

    return lambda sources, beams: [greedy(row) for row in sources]


def _until(row: Ids, end: int | None) -> Ids:
    return row[: row.index(end)] if end in row else row


def log_p(model: EncoderDecoderModel, run: Run, source: Ids, target: Ids) -> float:
    """The log-probability of a translation, its end included."""
    side = run.tokenizers.target
    assert side.eos_id is not None
    tokens = torch.tensor([*target, side.eos_id])
    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([[side.bos_id, *target]]))[0]
    return float(logits.log_softmax(-1)[torch.arange(len(tokens)), tokens].sum())


def main() -> None:
    """Export, translate with each, and write `results/exported.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data.root", dest="root")
    asked = parser.parse_args()
    run = Run.open(asked.run, {"data.root": asked.root} if asked.root else {})
    assert isinstance(run.model, EncoderDecoderModel)
    corpus = run.recipe.corpus()
    texts = [source_text(example) for example in corpus.test]
    sources = encode_for_task("translation", run.tokenizers.source, texts)
    with tempfile.TemporaryDirectory() as folder:
        made = {form: Path(folder) / form for form in ("hf", "ctranslate2", "onnx")}
        for form, out in made.items():
            export_run(run, out, to=form)  # type: ignore[arg-type]
        back = Run.open(made["hf"])
        assert isinstance(back.model, EncoderDecoderModel)
        ours = of_ours(run.model, run)
        writers = {
            "ours, from the exported folder": of_ours(back.model, run),
            "transformers": of_transformers(made["hf"], run),
            "ctranslate2": of_ctranslate2(made["ctranslate2"], run),
            "onnxruntime": of_onnx(made["onnx"], run),
        }
        figures: dict[str, object] = {}
        for beams in (1, BEAM.beams):
            expected = ours(sources, beams)
            for name, write in writers.items():
                if beams > 1 and name == "onnxruntime":
                    continue
                results = write(sources, beams)
                rows = [i for i, (a, b) in enumerate(zip(expected, results, strict=True)) if a != b]
                figures[f"{name}, {'greedy' if beams == 1 else f'beam {beams}'}"] = {
                    "sentences": len(sources),
                    "different": len(rows),
                    "log_p, ours and theirs": [
                        [log_p(run.model, run, sources[i], ids[i]) for ids in (expected, results)]
                        for i in rows
                    ],
                }
                print(name, beams, "different:", len(rows), flush=True)
    result = {
        "command": f"python benchmarks/exported.py {asked.run}",
        "date": date.today().isoformat(),
        "machine": f"{torch.get_num_threads()} cores, {platform.machine()}",
        "versions": {
            name: version(name)
            for name in ("addnorm", "torch", "transformers", "ctranslate2", "onnxruntime")
        },
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "exported.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
