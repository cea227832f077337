"""Parity tests shared by encoders: logits, hidden states, both directions, padding."""

from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.parity.families import check_hidden_states, made, padded, prompts
from torch import Tensor
from torch.testing import assert_close

from addnorm.checking.wide import Wide
from addnorm.convert.folder import LoadedModel, load, save

NEAR = {torch.float64: 1e-10, torch.float32: 1e-5}


def check_encoder(
    kind: str,
    config: Any,
    folder: Path,
    *,
    pick: str = "logits",
    pad: int = 0,
    types: int = 0,
) -> tuple[Any, LoadedModel]:
    """All of it for a class of theirs; `pick` is the output that our head gives."""
    theirs, loaded = made(kind, config, folder)
    ids, valid = padded(prompts(config.vocab_size), left=False, pad=pad)
    batch: dict[str, Tensor] = {"input_ids": ids, "attention_mask": valid.long()}
    if types:
        batch["token_type_ids"] = ids % types
    check_same(theirs, folder, batch, pick)
    check_hidden_states(theirs, loaded, ids[:1])
    check_both_ways(kind, theirs, loaded, folder, batch, pick)
    return theirs, loaded


def check_same(theirs: Any, folder: Path, batch: dict[str, Tensor], pick: str = "logits") -> None:
    """The same output at every real token, in both types."""
    for dtype, near in NEAR.items():
        expected = output(deepcopy(theirs).to(dtype), batch, pick)
        model = load(folder, dtype=dtype).model
        with torch.no_grad():
            got = model(
                batch["input_ids"],
                batch["attention_mask"].bool(),
                batch.get("token_type_ids"),
            )
        scale = max(1.0, float(expected.abs().max())) if dtype == torch.float32 else 1.0
        real = batch["attention_mask"].bool() if got.ndim == 3 else ...
        assert got.dtype == dtype
        assert_close(got[real], expected[real], rtol=0, atol=near * scale)


def reopened(kind: str, theirs: Any, loaded: LoadedModel, folder: Path) -> Any:
    """What transformers opens of our export, which we too read back, equal bit for bit."""
    out = folder / "exported"
    save(out, loaded.spec, loaded.model, loaded.text, model_type=theirs.config.model_type)
    again = load(out)
    assert again.spec == loaded.spec
    weights, same = loaded.model.state_dict(), again.model.state_dict()
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    with Wide():
        opened, info = getattr(transformers, kind).from_pretrained(
            out, output_loading_info=True, dtype=torch.float64
        )
    assert not any(info.values()), info
    assert opened.config.architectures == [kind]
    return opened


def check_both_ways(
    kind: str, theirs: Any, loaded: LoadedModel, folder: Path, batch: dict[str, Tensor], pick: str
) -> None:
    """Ours → theirs → ours is equal bit for bit; theirs opens it, and says the same as before."""
    opened = reopened(kind, theirs, loaded, folder)
    expected = output(theirs, batch, pick)
    real = batch["attention_mask"].bool() if expected.ndim == 3 else ...
    assert_close(output(opened, batch, pick)[real], expected[real], rtol=0, atol=1e-10)


def output(theirs: Any, batch: dict[str, Tensor], pick: str) -> Tensor:
    wide = next(theirs.parameters()).dtype == torch.float64
    with torch.no_grad(), Wide() if wide else nullcontext():
        outputs = theirs(**batch)
    if pick == "spans":
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
    return outputs[pick]
