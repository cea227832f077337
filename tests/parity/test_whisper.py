"""Whisper against transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import (
    changed,
    check_both_stacks,
    check_logits,
    check_refused,
    check_round_trip,
    made,
    padded,
    prompts,
)
from torch import Tensor

from addnorm.checking.wide import Wide
from addnorm.convert.folder import LoadedModel, load
from addnorm.generate import BeamConfig, GreedyConfig
from addnorm.generate.decode import decode
from addnorm.generate.next_token import Translation
from addnorm.models import EncoderDecoderModel

pytestmark = pytest.mark.parity

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 16,
    "num_mel_bins": 5,
    "max_source_positions": 6,
    "max_target_positions": 80,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "decoder_start_token_id": 0,
    "begin_suppress_tokens": None,
} | {
    f"{side}_{key}": value
    for side in ("encoder", "decoder")
    for key, value in {"layers": 2, "attention_heads": 2, "ffn_dim": 24}.items()
}
HEADS = {"encoder_attention_heads": 3, "decoder_attention_heads": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": HEADS
    | {"d_model": 18, "vocab_size": 67, "decoder_layers": 1, "num_mel_bins": 3}
    | {"max_source_positions": 5, "encoder_ffn_dim": 7, "decoder_ffn_dim": 7},
    "unequal": {"decoder_attention_heads": 4, "encoder_ffn_dim": 9},
    "untied-relu": {"activation_function": "relu", "tie_word_embeddings": False},
}


class Heard(Translation):
    """What follows frames that are given once."""

    def __init__(self, model: EncoderDecoderModel, frames: Tensor) -> None:
        super().__init__(model, 0)
        self.frames = frames

    def remaining_length(self, i: int, prompt: Sequence[int]) -> int:
        return 64

    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        return self.begin(self.frames)


def frames(changes: dict[str, Any]) -> Tensor:
    sizes = SMALL | changes
    generator = torch.Generator().manual_seed(2)
    shape = (3, sizes["num_mel_bins"], 2 * sizes["max_source_positions"])
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def batch(changes: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    target, _ = padded(prompts(64, (5, 5, 5)), left=False)
    heard = frames(changes)
    return (
        {"input_features": heard, "decoder_input_ids": target},
        {"source": heard, "target": target},
    )


def pair(folder: Path, **changes: Any) -> tuple[Any, LoadedModel]:
    config = transformers.WhisperConfig(**SMALL | changes)
    return made("WhisperForConditionalGeneration", config, folder)


@pytest.mark.long
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_tokens_are_equal(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs, loaded = pair(tmp_path, **changes)
    inputs, ours = batch(changes)
    check_logits(theirs, tmp_path, inputs, ours)
    check_round_trip(
        loaded, tmp_path, "WhisperForConditionalGeneration", "whisper", theirs, **inputs
    )
    check_both_stacks(theirs, loaded, inputs, inputs.pop("decoder_input_ids"))
    check_tokens(theirs, loaded, frames(changes))


def check_tokens(theirs: Any, loaded: LoadedModel, heard: Tensor) -> None:
    """The same tokens by greedy and by beam search."""
    assert isinstance(loaded.model, EncoderDecoderModel)
    for beams in (1, 3):
        settings = transformers.GenerationConfig(
            pad_token_id=0,
            bos_token_id=0,
            eos_token_id=None,
            decoder_start_token_id=0,
            max_new_tokens=64,
            num_beams=beams,
            do_sample=False,
        )
        theirs.generation_config = settings
        with Wide():
            expected = transformers.GenerationMixin.generate(theirs, heard)
        decoding = GreedyConfig() if beams == 1 else BeamConfig(beams=beams)
        found = decode(Heard(loaded.model, heard), [[0]] * 3, decoding, [64] * 3, eos_id=None)
        assert [list(best[0].ids) for best in found] == expected[:, 1:].tolist()


def test_older_layouts_load_the_same_model(tmp_path: Path) -> None:
    """The tied head in the file, no prefix, and keys of the first configurations."""
    theirs, _ = pair(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights = {name.removeprefix("model."): weight for name, weight in weights.items()}
    weights["proj_out.weight"] = weights["decoder.embed_tokens.weight"].clone()
    save_file(weights, tmp_path / "model.safetensors")
    changed(tmp_path, {"forced_decoder_ids": [[1, 5]], "num_hidden_layers": 2, "max_length": 448})
    check_logits(theirs, tmp_path, *batch({}))


def test_the_type_of_what_the_file_has_not(tmp_path: Path) -> None:
    theirs, _ = pair(tmp_path)
    theirs.bfloat16().save_pretrained(tmp_path)
    assert {one.dtype for one in load(tmp_path).model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"use_weighted_layer_sum": True}, "use_weighted_layer_sum = True"),
        ({"activation_function": "gelo"}, "Did you mean 'gelu'"),
        ({"max_source_positions": 7}, r"source_embed\.position\.table\.weight has shape \(6, 16\)"),
        ({"n_experts": 4}, "n_experts = 4"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, object], match: str, tmp_path: Path
) -> None:
    pair(tmp_path)
    check_refused(tmp_path, changes, match)
