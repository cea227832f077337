"""Export random models to every target: each must be equal, or refused with a reason.

`python -m tests.convert.exports 500` does it for 500 models a target and writes the counts to
`benchmarks/results/exports-property.json`.
"""

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tests.convert.drawn import draw
from torch import Tensor

from addnorm.atomic import atomic_write
from addnorm.convert.core.family import ModelSpec
from addnorm.convert.exporters.ctranslate2 import export_ctranslate2
from addnorm.convert.exporters.gguf import export_gguf
from addnorm.convert.exporters.gguf_check import GGUFFile
from addnorm.convert.exporters.onnx import check_exportable, export_onnx, graphs_of
from addnorm.convert.exporters.onnx_check import Session
from addnorm.convert.folder import load, save
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import BPEConfig
from addnorm.errors import InputError
from addnorm.models import DecoderModel, EncoderDecoderModel, EncoderModel

BPE = BPEConfig(vocab_size=280).train([f"the {n}th day of year {n * 37 % 100}" for n in range(60)])
BOTH = Tokenizers(BPE, BPE)
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "exports-property.json"

QUICK = ("hf", "gguf", "ctranslate2", "graphs")
"""The targets that take a fraction of a second a model; tracing a graph takes many."""

Outcome = tuple[str, str]
"""`equal` or `refused`, and why."""

Export = Callable[[Any, Any, Path, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Exports a model and returns what the export says of a text, and what is expected."""


def _hf(config: Any, model: Any, out: Path, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    save(out, ModelSpec(model=config, vocab_size=BPE.vocab_size), model, None)
    inputs = (one, other) if isinstance(model, EncoderDecoderModel) else (one,)
    return load(out).model(*inputs), model(*inputs)


def _gguf(config: Any, model: Any, out: Path, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    export_gguf(model, config, BOTH, out)
    return GGUFFile(out).logits(one[0])[None], model(one)


def _ctranslate2(
    config: Any, model: Any, out: Path, one: Tensor, other: Tensor
) -> tuple[Tensor, Tensor]:
    import ctranslate2

    export_ctranslate2(model, config, BOTH, out)
    how = {"compute_type": "float32", "intra_threads": 1}
    if isinstance(model, DecoderModel):
        found = ctranslate2.Generator(str(out), **how).forward_batch(one.tolist())
        return torch.from_numpy(np.array(found)), model(one)
    names = [[BPE.inner.id_to_token(i) for i in row.tolist()] for row in (one[0], other[0])]
    [scored] = ctranslate2.Translator(str(out), **how).score_batch([names[0]], [names[1]])
    end, begin = torch.tensor([[BPE.eos_id]]), torch.tensor([[BPE.bos_id]])
    logits = model(torch.cat([one, end], 1), torch.cat([begin, other], 1)).log_softmax(-1)
    ours = logits.gather(-1, torch.cat([other, end], 1)[..., None])[..., 0]
    return torch.tensor([scored.log_probs]), ours


def _onnx(config: Any, model: Any, out: Path, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    export_onnx(model, config, out)
    if isinstance(model, EncoderDecoderModel):
        encoder, decoder = Session(out / "encoder_model.onnx"), Session(out / "decoder_model.onnx")
        memory = encoder.run(encoder.source(one))
        new = {"input_ids": other, "encoder_attention_mask": torch.ones_like(one)}
        return decoder.run(new | memory | decoder.empty_past())["logits"], model(one, other)
    if isinstance(model, EncoderModel):
        session = Session(out / "model.onnx")
        [outputs] = session.run(session.source(one)).values()
        return outputs, model(one)
    session = Session(out / "decoder_model.onnx")
    new = {"input_ids": one, "attention_mask": torch.ones_like(one)}
    return session.run(new | session.empty_past())["logits"], model(one)


def _graphs(
    config: Any, model: Any, out: Path, one: Tensor, other: Tensor
) -> tuple[Tensor, Tensor]:
    """The modules that ONNX traces, run on texts by the names of their inputs."""
    check_exportable(model)
    both = isinstance(model, EncoderDecoderModel)
    given = {"attention_mask": torch.ones_like(one), "token_type_ids": torch.zeros_like(one)}
    given |= {"input_ids": one, "encoder_attention_mask": torch.ones_like(one)}
    found: dict[str, Tensor] = {}
    for graph in graphs_of(model, config):
        if graph.name == "decoder_model.onnx":
            given |= {"input_ids": other if both else one}
            past = {name: slot.example for name, slot in graph.inputs.items() if "past" in name}
            given |= {name: example[:1, :, :0] for name, example in past.items()}
        tensors = graph.module(*(given[name] for name in graph.inputs))
        parts = tensors if isinstance(tensors, list) else [tensors]
        found |= dict(zip(graph.outputs, parts, strict=True))
        given |= {name: one for name, one in found.items() if name.startswith("cross")}
    last = [*found.values()][-1] if isinstance(model, EncoderModel) else found["logits"]
    return last, model(one, other) if both else model(one)


TARGETS: dict[str, tuple[tuple[str, ...], Export]] = {
    "hf": (("decoder", "encoder_decoder", "encoder"), _hf),
    "gguf": (("decoder",), _gguf),
    "ctranslate2": (("decoder", "encoder_decoder"), _ctranslate2),
    "graphs": (("decoder", "encoder_decoder", "encoder"), _graphs),
    "onnx": (("decoder", "encoder_decoder", "encoder"), _onnx),
}
"""The kinds of model of each target, and how it is exported to."""


def outcome(target: str, number: int) -> Outcome:
    """What becomes of drawn model `number`. Raises `AssertionError` where an export is wrong."""
    kinds, export = TARGETS[target]
    rng = random.Random(f"{target} {number}")
    config, model = draw(rng, kinds, BPE.vocab_size)
    one, other = (
        torch.tensor([[rng.randrange(4, BPE.vocab_size) for _ in range(n)]]) for n in (13, 11)
    )
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        try:
            with torch.inference_mode():
                found, expected = export(config, model, out, one, other)
        except InputError as error:
            reason = str(error)
            left = [file.name for file in Path(folder).iterdir()]
        else:
            reason, left = None, []
    if reason is not None:
        assert not left, f"{target} {number}: refused, and left {left}"
        assert reason, f"{target} {number}: refused without a reason"
        return "refused", reason
    if not expected.numel():  # an encoder of no classes
        return "equal", ""
    apart = float((found.double() - expected.double()).abs().max())
    allowed = 1e-3 * max(1.0, float(expected.abs().max()))
    assert apart <= allowed, f"{target} {number}: logits differ by {apart} of {config}"
    return "equal", ""


def count(target: str, n: int) -> tuple[Counter[str], Counter[str]]:
    """The outcomes of `n` models, and the reasons of refusals without their numbers."""
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for number in range(n):
        kind, reason = outcome(target, number)
        outcomes[kind] += 1
        if reason:
            reasons[re.sub(r"[-\d.e]+\d", "N", reason)[:90]] += 1
    return outcomes, reasons


def main(n: int) -> None:
    """Count and write."""
    found: dict[str, Any] = {"command": f"python -m tests.convert.exports {n}", "models": n}
    for target in QUICK:
        outcomes, reasons = count(target, n)
        found[target] = {**outcomes, "reasons": dict(reasons.most_common(12))}
        print(target, dict(outcomes), flush=True)
    atomic_write(RESULTS, json.dumps(found, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
