"""Verifying a CTranslate2 export by running it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from addnorm.convert.core.readback import check_logits, model_logits, sample_inputs
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.models import DecoderModel, EncoderDecoderModel

ROUNDING = {"float16": 2e-2, "bfloat16": 1e-1, "int16": 2e-2}
"""Tolerances for lower-precision types; 0.25 for int8 weights."""


def check_ctranslate2(
    folder: Path,
    model: EncoderDecoderModel | DecoderModel,
    tokenizers: Tokenizers,
    quantization: str | None,
) -> None:
    """Raise `InputError` unless the runtime reproduces the model's logits on a short text.

    Translation models return no logits, so the log-probabilities of a target are compared.
    """
    if isinstance(model, DecoderModel):
        [tokens] = inputs = sample_inputs(model)
        expected, actual = model_logits(model, inputs), _logits(folder, tokens)
    else:
        expected, actual = _log_probabilities(folder, model, tokenizers)
    rounding = None if quantization is None else ROUNDING.get(quantization, 0.25)
    check_logits("CTranslate2", actual, expected, expected.dtype, tolerance=rounding)


def _opened(kind: str, folder: Path) -> Any:
    import ctranslate2

    return getattr(ctranslate2, kind)(str(folder), compute_type="float32", intra_threads=1)


def _logits(folder: Path, tokens: Tensor) -> Tensor:
    logits = _opened("Generator", folder).forward_batch(tokens.tolist())
    return torch.from_numpy(np.array(logits))


def _log_probabilities(
    folder: Path, model: EncoderDecoderModel, tokenizers: Tokenizers
) -> tuple[Tensor, Tensor]:
    """Our and their log-probabilities of a target; the runtime adds special tokens itself."""
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
    """The tokens of these ids in the folder's vocabulary."""
    shared, own = folder / "shared_vocabulary.json", folder / f"{side}_vocabulary.json"
    names = json.loads((shared if shared.exists() else own).read_text(encoding="utf-8"))
    return [names[i] for i in ids]
