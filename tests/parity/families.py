"""Parity tests shared by all families against transformers, with random weights."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.checking.wide import Wide
from addnorm.convert.folder import LoadedModel, load, save
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, generate, translate
from addnorm.models import DecoderModel, EncoderDecoderModel, EncoderModel
from addnorm.models.inputs import embedded
from addnorm.nn.context import Context
from addnorm.nn.embed import zero_padding
from addnorm.nn.masks import Causal

LENGTHS = (7, 1, 4)
"""Of the rows of a ragged batch."""


def started(model: nn.Module) -> nn.Module:
    """The model with every parameter moved from where it starts: gains, biases, positions too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def made(kind: str, config: Any, folder: Path) -> tuple[Any, LoadedModel]:
    """A random model of transformers, saved in `folder`, and ours of that folder; both float64."""
    torch.manual_seed(0)
    with Wide():
        theirs = started(getattr(transformers, kind)(config))
    for weight in theirs.parameters():
        weight.data = weight.data.float()
    theirs.save_pretrained(folder)
    return theirs.double(), load(folder, dtype=torch.float64)


def changed(folder: Path, changes: dict[str, Any], without: Sequence[str] = ()) -> None:
    """Change keys of the `config.json`, and take some away."""
    file = folder / "config.json"
    tree = json.loads(file.read_text())
    kept = {key: value for key, value in tree.items() if key not in without}
    file.write_text(json.dumps(kept | changes))


def small_config(name: str, **changes: Any) -> Any:
    """A small configuration of a language model, by the name of its class in transformers."""
    small = {
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }
    return getattr(transformers, name)(**small | changes)


def check_refused(folder: Path, changes: dict[str, Any], match: str) -> None:
    """A folder is refused once these keys of its `config.json` are changed."""
    changed(folder, changes)
    with pytest.raises(InputError, match=match):
        load(folder)


def prompts(vocab_size: int, lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    """Random rows of these lengths, without the special ids 0 to 2."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def padded(rows: Sequence[Sequence[int]], *, left: bool, pad: int = 0) -> tuple[Tensor, Tensor]:
    """The rows as one tensor, and which of it is real."""
    width = max(map(len, rows))
    filled = [
        [pad] * (width - len(row)) + list(row) if left else list(row) + [pad] * (width - len(row))
        for row in rows
    ]
    real = torch.tensor([len(row) for row in rows])[:, None]
    slots = torch.arange(width)
    return torch.tensor(filled), slots >= width - real if left else slots < real


def translation_batch(
    *, lengths: Sequence[int] = LENGTHS, n: int = 5, pad: int = 0
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Padded sources with targets of `n` tokens, as theirs and as ours."""
    ids, valid = padded(prompts(64, lengths), left=False, pad=pad)
    target, _ = padded(prompts(64, (n, n, n)), left=False)
    theirs = {"input_ids": ids, "attention_mask": valid.long(), "decoder_input_ids": target}
    return theirs, {"source": ids, "target": target, "source_valid": valid}


def check_logits(theirs: Any, folder: Path, inputs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Within 1e-10 in float64 and 1e-5 in float32; `inputs` are theirs, `ours` those of ours."""
    for dtype, near in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model = load(folder, dtype=dtype).model
        with torch.no_grad():
            with Wide() if dtype == torch.float64 else nullcontext():
                expected = deepcopy(theirs).to(dtype)(**_as(dtype, inputs))
            got = model(**_as(dtype, ours))
        logits = expected.logits if "logits" in expected else expected[0]
        scale = max(1.0, float(logits.abs().max())) if dtype == torch.float32 else 1.0
        assert_close(got, logits, rtol=0, atol=near * scale)


def _as(dtype: torch.dtype, inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}


def check_hidden_states(theirs: Any, loaded: LoadedModel, ids: Tensor) -> None:
    """Layer by layer, the last after the final norm, in float64."""
    with torch.no_grad():
        with Wide():
            expected = theirs(ids, output_hidden_states=True).hidden_states
        match loaded.model:
            case DecoderModel() as model:
                ctx = Context.over(ids, Causal())
                x = model.embed(ids, ctx)
            case EncoderModel() as model:
                x, ctx = embedded(model.embed, ids, None)
            case EncoderDecoderModel():
                raise AssertionError("compare encoder and decoder by themselves")
        states = [model.stack.apart(x)[0], *model.stack.layer_outputs(x, ctx)]
        states[-1] = model.stack.norm(states[-1], None)
    assert len(states) == len(expected)
    for got, other in zip(states, expected, strict=True):
        assert_close(got, other, rtol=0, atol=1e-10)


def check_greedy_and_beam(theirs: Any, loaded: LoadedModel, vocab_size: int, n: int = 64) -> None:
    """The same tokens for a ragged batch, by greedy and by beam search, in float64."""
    rows = prompts(vocab_size)
    ids, valid = padded(rows, left=isinstance(loaded.model, DecoderModel))
    theirs.generation_config = transformers.GenerationConfig(
        pad_token_id=0, bos_token_id=0, eos_token_id=None, decoder_start_token_id=0
    )
    for beams in (1, 3):
        decoding = GreedyConfig() if beams == 1 else BeamConfig(beams=beams)
        with Wide():
            expected = theirs.generate(
                ids, attention_mask=valid.long(), max_new_tokens=n, num_beams=beams, do_sample=False
            )[:, -n:]
        match loaded.model:
            case DecoderModel() as model:
                found = generate(model, rows, decoding, max_new_tokens=n, eos_id=None)
            case EncoderDecoderModel() as model:
                found = translate(model, rows, decoding, max_new_tokens=n, bos_id=0, eos_id=None)
            case EncoderModel():
                raise AssertionError("an encoder writes nothing")
        assert [list(best[0].ids) for best in found] == expected.tolist()


def check_decoder(
    kind: str,
    config: Any,
    folder: Path,
    *,
    lengths: Sequence[int] = LENGTHS,
    n: int = 64,
    hidden_states: bool = True,
) -> None:
    """The same logits, hidden states and `n` tokens, and a round trip, for a class of theirs."""
    theirs, loaded = made(kind, config, folder)
    ids, _ = padded(prompts(64, lengths), left=False)
    check_logits(theirs, folder, {"input_ids": ids}, {"tokens": ids})
    if hidden_states:
        check_hidden_states(theirs, loaded, ids)
    check_greedy_and_beam(theirs, loaded, 64, n)
    family = config.model_type
    check_round_trip(loaded, folder, "AutoModelForCausalLM", family, theirs, input_ids=ids)


def check_round_trip(
    loaded: LoadedModel,
    folder: Path,
    auto: str,
    model_type: str,
    theirs: Any = None,
    **inputs: Tensor,
) -> None:
    """Ours → theirs → ours is equal bit for bit, and transformers opens it without a complaint.

    What it opens says of the `inputs` the same as `theirs`, where they are given.
    """
    out = folder / "exported"
    save(out, loaded.spec, loaded.model, loaded.text, model_type=model_type)
    again = load(out)
    assert again.spec == loaded.spec
    weights, same = loaded.model.state_dict(), again.model.state_dict()
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    opened = getattr(transformers, auto)
    with Wide():
        model, info = opened.from_pretrained(out, output_loading_info=True, dtype=torch.float64)
    assert not any(info.values()), info
    if theirs is not None:
        with torch.no_grad(), Wide():
            got, expected = model.eval()(**inputs)[0], theirs(**inputs)[0]
        assert_close(got, expected, rtol=0, atol=1e-10)


def check_both_stacks(
    theirs: Any, loaded: LoadedModel, inputs: dict[str, Any], target: Tensor
) -> None:
    """Encoder and decoder layer by layer, the last after its final norm, in float64.

    `inputs` are theirs; the first is ours too, with its mask where there is one.
    """
    model = loaded.model
    assert isinstance(model, EncoderDecoderModel)
    source, valid = [*inputs.values(), None][:2]
    valid = None if valid is None else valid.bool()
    with torch.no_grad():
        with Wide():
            expected = theirs(**inputs, decoder_input_ids=target, output_hidden_states=True)
        x, ctx = embedded(model.source_embed, source, valid)
        encoded = [x, *model.encoder.layer_outputs(x, ctx)]
        encoded[-1] = model.encoder.norm(encoded[-1], None)
        ctx = Context.over(target, Causal()).attending(zero_padding(encoded[-1], valid), valid)
        x = model.target_embed(target, ctx)
        decoded = [x, *model.decoder.layer_outputs(x, ctx)]
        decoded[-1] = model.decoder.norm(decoded[-1], None)
    for ours, others, real in (
        (encoded, expected.encoder_hidden_states, slice(None) if valid is None else valid),
        (decoded, expected.decoder_hidden_states, slice(None)),
    ):
        assert len(ours) == len(others)
        for got, other in zip(ours, others, strict=True):
            assert_close(got[real], other[real], rtol=0, atol=1e-10)
