"""Our int8 and CTranslate2's on one translator: BLEU, size of the weights, and processor time.

    addnorm train recipes/multi30k-en-de.toml --model.feedforward.activation relu --data.root DATA
    python benchmarks/quantized_translator.py runs/multi30k-en-de DATA > FILE.json

CTranslate2 has no squared ReLU, so the recipe takes another activation. Both translate the test
split in batches of 64 by greedy search and by 5 beams, scored alike (log p divided by the length),
on one thread. Times are those of the processor, so that other work on the machine counts for
little; models take turns, and the least of the rounds is reported.
"""

import copy
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import ctranslate2
import torch

from addnorm.data.examples import source_text
from addnorm.generate import BeamConfig, DecodingConfig, GreedyConfig, TextDecoder
from addnorm.metrics.scores import translation_scores
from addnorm.quantize import Int8Config, StaticConfig, WeightsOnlyConfig, quantize
from addnorm.runs.evaluation import EvaluationData, data_of
from addnorm.runs.files.quantization_file import Quantization
from addnorm.runs.inference.text import write
from addnorm.runs.rewriting.quantize import calibration_examples
from addnorm.runs.run import Run

SCHEMES = {
    "int8 weights only": Int8Config(activations=WeightsOnlyConfig()),
    "int8 dynamic": Int8Config(),
    "int8 static, mse": Int8Config(activations=StaticConfig(range="mse")),
}
SEARCHES: dict[str, DecodingConfig] = {
    "greedy": GreedyConfig(),
    "beam 5": BeamConfig(beams=5, length_penalty=1.0, normaliser="length", width="constant"),
}
BATCH = 64
LONGEST = 100
"""The most tokens of a translation, for both."""
Translate = Callable[[Sequence[str], DecodingConfig], list[str]]


def ours(run: Run) -> Translate:
    """Translate by our own decoding."""

    def translate(texts: Sequence[str], decoding: DecodingConfig) -> list[str]:
        translations = write(run, texts, decoding, max_new_tokens=LONGEST)
        return [best[0].text for best in translations]

    return translate


def theirs(folder: Path, run: Run) -> Translate:
    """Translate by CTranslate2, with our tokenizers."""
    translator = ctranslate2.Translator(str(folder), intra_threads=1, inter_threads=1)
    source, target = run.tokenizers.source.inner, run.tokenizers.target

    def translate(texts: Sequence[str], decoding: DecodingConfig) -> list[str]:
        beams = decoding.beams if isinstance(decoding, BeamConfig) else 1
        tokens = [source.encode(text, add_special_tokens=False).tokens for text in texts]
        results: list[Any] = translator.translate_batch(
            tokens,
            beam_size=beams,
            length_penalty=1.0,
            max_decoding_length=LONGEST,
            max_batch_size=BATCH,
        )
        decoder = TextDecoder(target)
        return [
            decoder.write([target.inner.token_to_id(name) or 0 for name in result.hypotheses[0]])
            for result in results
        ]

    return translate


def models(folder: Path, data: str, out: Path) -> dict[str, tuple[Translate, int]]:
    """Each way to translate, and the bytes of its weights."""
    plain = Run.open(folder, {"data.root": json.dumps(data)})
    examples = EvaluationData.of(plain, "valid")
    results = {"float32": (ours(plain), (folder / "model.safetensors").stat().st_size)}
    for i, (name, scheme) in enumerate(SCHEMES.items()):
        at = out / f"ours-{i}"
        batches = calibration_examples(examples, scheme)
        model = quantize(copy.deepcopy(plain.model), scheme, [batch.inputs for batch in batches])
        replace(plain, model=model, quantization=Quantization(scheme=scheme)).save(at)
        results[name] = ours(Run.open(at)), (at / "model.safetensors").stat().st_size
    for name, made in (("float32", folder), ("int8", out / "ours-1")):
        at = out / f"ctranslate2-{name}"
        Run.open(made).export(at, to="ctranslate2")
        results[f"CTranslate2 {name}"] = theirs(at, plain), (at / "model.bin").stat().st_size
    return results


def measure(folder: Path, data: str, rounds: int) -> list[dict[str, float | str]]:
    """A row for each model and search."""
    run = Run.open(folder, {"data.root": json.dumps(data)})
    corpus = data_of(run).corpus
    assert corpus is not None
    pairs = corpus.splits["test"]
    texts = [source_text(pair) for pair in pairs]
    references = [pair.target for pair in pairs]  # pyright: ignore[reportAttributeAccessIssue]
    rows: dict[tuple[str, str], dict[str, float | str]] = {}
    with tempfile.TemporaryDirectory() as out:
        ways = models(folder, data, Path(out))
        whole = ways["float32"][1]
        for _ in range(rounds):
            for search, decoding in SEARCHES.items():
                for name, (translate, n_bytes) in ways.items():
                    start = time.process_time()
                    written = translate(texts, decoding)
                    seconds = time.process_time() - start
                    scores = translation_scores(written, references, "none")
                    before = rows.get((name, search), {}).get("seconds", seconds)
                    rows[name, search] = {
                        "model": name,
                        "search": search,
                        "MB": round(n_bytes / 1e6, 2),
                        "of float32": round(n_bytes / whole, 3),
                        "bleu": round(scores["bleu"], 2),
                        "chrf": round(scores["chrf"], 2),
                        "seconds": round(min(seconds, float(before)), 2),
                    }
                    print(rows[name, search], file=sys.stderr)
    return list(rows.values())


if __name__ == "__main__":
    torch.set_num_threads(1)
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    rows = measure(Path(sys.argv[1]), sys.argv[2], rounds)
    about = {"date": f"{date.today()}", "machine": platform.processor(), "rounds": rounds}
    versions = {"torch": torch.__version__, "ctranslate2": ctranslate2.__version__}
    print(json.dumps({**about, **versions, "rows": rows}, indent=1))
