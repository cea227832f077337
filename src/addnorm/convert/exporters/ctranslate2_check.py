"""Open a CTranslate2 folder in its runtime and compare what it computes with the model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from addnorm.convert.core.readback import check_logits, model_logits, sample_inputs
from addnorm.data.encoding import Tokenizers
from addnorm.data.tokenizers import Tokenizer
from addnorm.models import DecoderModel, EncoderDecoderModel

ROUNDING = {"float16": 2e-2, "bfloat16": 1e-1, "int16": 2e-2}
"""By how much logits may differ in a narrower type; weights in int8 may cost a quarter."""


def check_ctranslate2(
    folder: Path,
    model: EncoderDecoderModel | DecoderModel,
    tokenizers: Tokenizers,
    quantization: str | None,
) -> None:
    """Raise `InputError` unless the runtime gives the logits of the model on a short text.

    Of a translator, which shows no logits, the probabilities of the tokens of one target.
    """
    if isinstance(model, DecoderModel):
        [tokens] = inputs = sample_inputs(model)
        expected, found = model_logits(model, inputs), _logits(folder, tokens)
    else:
        expected, found = _log_probabilities(folder, model, tokenizers)
    rounding = None if quantization is None else ROUNDING.get(quantization, 0.25)
    check_logits("CTranslate2", found, expected, expected.dtype, tolerance=rounding)


def _opened(kind: str, folder: Path) -> Any:
    import ctranslate2

    return getattr(ctranslate2, kind)(str(folder), compute_type="float32", intra_threads=1)


def _logits(folder: Path, tokens: Tensor) -> Tensor:
    found = _opened("Generator", folder).forward_batch(tokens.tolist())
    return torch.from_numpy(np.array(found))


def _log_probabilities(
    folder: Path, model: EncoderDecoderModel, tokenizers: Tokenizers
) -> tuple[Tensor, Tensor]:
    """Ours and theirs of a target; the runtime adds what it and its source begin and end with."""
    source, target = sample_inputs(model)
    source, target = source[:, :-2], target[:, :-1]
    before, after = _ends(tokenizers.source)
    bos, eos = tokenizers.target.bos_id, tokenizers.target.eos_id
    assert eos is not None
    read = torch.cat([source.new_tensor([before]), source, source.new_tensor([after])], dim=1)
    written = torch.cat([target.new_tensor([[bos]]), target], dim=1)
    following = torch.cat([target, target.new_tensor([[eos]])], dim=1)
    logits = model_logits(model, (read.long(), written)).float().log_softmax(-1)
    ours = logits.gather(-1, following[..., None])[..., 0]
    names = (
        _names(folder, source[0].tolist(), "source"),
        _names(folder, target[0].tolist(), "target"),
    )
    [scored] = _opened("Translator", folder).score_batch([names[0]], [names[1]])
    return ours, torch.tensor([scored.log_probs])


def _ends(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    after = tokenizer.eos_ids[:1] if tokenizer.after is None else tokenizer.after
    return list(tokenizer.before or ()), list(after)


def _names(folder: Path, ids: list[int], side: str) -> list[str]:
    """The tokens as the vocabulary of the folder has them."""
    shared, own = folder / "shared_vocabulary.json", folder / f"{side}_vocabulary.json"
    names = json.loads((shared if shared.exists() else own).read_text(encoding="utf-8"))
    return [names[i] for i in ids]
