"""The proof of a family of checkpoints holds for ours, and names what a wrong one changes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from addnorm.checking.checkpoints import check_family, check_settings, n_parameters
from addnorm.checking.small_models import small_settings
from addnorm.convert import registry
from addnorm.convert.core import keys
from addnorm.convert.core.decoder_tasks import DecoderTables
from addnorm.convert.core.family import Family, attention_of
from addnorm.convert.core.settings import Settings
from addnorm.convert.families.llama import LLAMA
from addnorm.convert.folder import read_config
from addnorm.errors import InputError
from addnorm.nn.residuals import SandwichNormConfig

pytestmark = pytest.mark.parity

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def settings(**changes: Any) -> Settings:
    return Settings(TINY | changes)


def test_a_family_of_ours_is_equal() -> None:
    result = check_settings(settings(dtype="bfloat16"))
    assert result.failed is None
    assert result.cell == "llama, 3 layers of width 16"
    assert result.compared > 30


def proved(family: Family, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> str:
    """What fails in the proof of a family from outside."""
    monkeypatch.setitem(registry.REGISTERED, "mine", replace(family, model_type="mine"))
    return check_settings(settings(model_type="mine", **changes)).failed or ""


def with_table(**changes: Any) -> Family:
    assert isinstance(LLAMA.config, DecoderTables)
    return replace(LLAMA, config=replace(LLAMA.config.writing, **changes))


def with_entry(entry: keys.Entry) -> Family:
    assert isinstance(LLAMA.config, DecoderTables)
    return with_table(entries=(*LLAMA.config.writing.entries, entry))


class Doubled(keys.Value):
    """A key that is read as twice its value."""

    def decoded(self, settings: Settings) -> float:
        return 2 * super().decoded(settings)

    def encoded(self, value: float) -> float:
        return value / 2


def swapped(first: str, second: str) -> Family:
    ours = [f"stack.blocks.*.{part}" for part in (first, second)]
    theirs = {ours[0]: LLAMA.names[ours[1]], ours[1]: LLAMA.names[ours[0]]}
    return replace(LLAMA, names={**LLAMA.names, **theirs})


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (
            with_entry(Doubled("norm.eps", "rms_norm_eps", 1e-3)),
            "logits in float64, padded on the right: "
            "the first output that differs is that of layer 0",
        ),
        (swapped("feedforward.gate_proj", "feedforward.up_proj"), "that of layer 0"),
        (with_entry(Doubled("head.softcap", "softcap", 1.0)), "every layer agrees, so the head"),
    ],
)
def test_what_differs_first_is_named(
    family: Family, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert expected in proved(family, monkeypatch, rms_norm_eps=1e-3)


def test_large_sizes_are_reduced(tmp_path: Path) -> None:
    """A published configuration: 8 billion parameters, with their head width and their scaling."""
    llama3 = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    tree = TINY | {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rope_scaling": llama3,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128009],
        "pad_token_id": None,
    }
    given = Settings(tree)
    spec = read_config(LLAMA, given)
    assert n_parameters(spec) > 8e9
    reduced, small = small_settings(LLAMA, spec, given)
    assert reduced["num_attention_heads"] == 4
    assert reduced["num_key_value_heads"] == 2
    assert reduced["rope_scaling"] == llama3
    assert attention_of(small.model).heads(small.model.d_model).d_head == 128
    assert n_parameters(small) < 8e6


def test_a_folder_without_weights_is_enough(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    assert check_family(tmp_path).failed is None


def test_a_model_of_images_is_refused() -> None:
    tree = transformers.ViTConfig(hidden_size=8, num_attention_heads=2).to_dict()
    with pytest.raises(InputError, match="the proof of a family reads tokens"):
        check_settings(Settings(tree))


def test_a_norm_too_many_has_tensors_that_no_file_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(LLAMA.config, DecoderTables)
    wrong = with_table(base=replace(LLAMA.config.writing.base, residual=SandwichNormConfig()))
    assert "InputError" in (failed := proved(wrong, monkeypatch))
    assert "missing model.layers.0.pre_feedforward_layernorm.weight" in failed
