"""Every key of a config.json is read, known to be inert, or named in an error."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Settings, labels_of
from addnorm.convert.families.gpt2 import GPT2
from addnorm.convert.folder import family_of, load, read_config, save
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.residuals import PreNormConfig


def test_values_have_their_type() -> None:
    settings = Settings({"a": 1, "b": "x", "c": None, "d": True, "e": 2.5})
    assert settings.get("a", 3) == 1
    assert settings.get("a", 0.5) == 1.0
    assert settings.get("c", "default") == settings.get("missing", "default") == "default"
    assert settings.required_int("gone", "a") == 1
    assert settings.optional_int("gone") is None
    assert settings.optional_float("c") is None
    for key, default in (("b", 1), ("d", 1), ("e", 1), ("a", "x"), ("a", True)):
        with pytest.raises(InputError, match=f"{key} = .* must be of type"):
            settings.get(key, default)
    with pytest.raises(InputError, match="gone or lost is missing"):
        settings.required_int("gone", "lost")


def test_choices_name_the_nearest() -> None:
    settings = Settings({"act": "gleu"})
    with pytest.raises(InputError, match=r"Did you mean 'gelu'\? Valid: gelu, relu"):
        settings.choose("act", {"gelu": 1, "relu": 2}, "gelu")
    with pytest.raises(InputError, match=r'act = .gleu. is not supported, only "gelu" or null'):
        settings.expect("act", "gelu", None)


def test_unread_keys_are_refused_unless_they_are_off() -> None:
    Settings({"new": None, "other": False, "list": [], "use_cache": True}).check_all_read()
    with pytest.raises(InputError, match="attention_sinks = 4 is not supported"):
        Settings({"attention_sinks": 4}).check_all_read()


def test_labels() -> None:
    assert labels_of(Settings({"id2label": {"1": "yes", "0": "no"}})) == ("no", "yes")
    assert labels_of(Settings({})) == ("LABEL_0", "LABEL_1")
    for wrong in ({"1": "a"}, {"x": "a"}, ["a"]):
        with pytest.raises(InputError, match="id2label"):
            labels_of(Settings({"id2label": wrong}))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff\xfe", b'{"a": 1, "a": 2}', b"{" * 9999]
)
def test_files_without_a_configuration_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=str(tmp_path)):
        load(tmp_path)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = DecoderConfig(
        d_model=8,
        n_layers=2,
        max_len=16,
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=2),
        feedforward=FeedForwardConfig(activation="gelu_tanh"),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
    )
    folder = tmp_path_factory.mktemp("gpt2")
    assert save(folder, ModelSpec(model=model, vocab_size=11), model.build(11), None) == "gpt2"
    return folder


VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 2**31, 2**63, 10**400, 0.0, -0.5, 1e308, "", "x", "gelu",
    [], [1], {}, {"a": 1}, "../../x", "\x00",
]  # fmt: skip


def mutated(tree: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """The configuration with one to three keys changed, removed or added."""
    tree = dict(tree)
    for _ in range(dice.randint(1, 3)):
        key = dice.choice([*tree, "rope_scaling", "n_experts", "auto_map", "quantization_config"])
        if dice.random() < 0.2:
            tree.pop(key, None)
        else:
            tree[key] = dice.choice(VALUES)
    return tree


@pytest.mark.parametrize("n", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_mutated_configurations_load_or_are_refused(n: int, gpt2: Path, tmp_path: Path) -> None:
    """Nothing else happens: no other exception, no model of another size than its weights."""
    (tmp_path / "model.safetensors").write_bytes((gpt2 / "model.safetensors").read_bytes())
    tree = json.loads((gpt2 / "config.json").read_text())
    dice, loaded = random.Random(0), 0
    problems: list[str] = []
    for _ in range(n):
        (tmp_path / "config.json").write_text(json.dumps(mutated(tree, dice)))
        try:
            model = load(tmp_path).model
        except InputError as error:
            problems.append(str(error))
        else:
            loaded += 1
            assert model.embed.tokens.weight.shape == (11, 8)
    assert all(str(tmp_path) in problem for problem in problems)
    assert 0 < loaded < n


def test_the_family_is_that_of_the_model_type(gpt2: Path) -> None:
    settings = Settings.of(gpt2)
    assert family_of(settings) is GPT2
    assert read_config(GPT2, settings).vocab_size == 11
    with pytest.raises(
        InputError, match=r"model_type = 'gtp2' is not supported.*Did you mean 'gpt2'"
    ):
        family_of(Settings({"model_type": "gtp2"}))


def test_integer_weights_are_refused(gpt2: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((gpt2 / "config.json").read_bytes())
    weights = {name: w.to(torch.int64) for name, w in _weights(gpt2).items()}
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"holds int64, which is not read as weights"):
        load(tmp_path)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_lists_of_numbers_are_checked() -> None:
    settings = Settings({"layers": [1, 0], "factors": [1, 2.5], "bad": [1, "x"], "empty": []})
    assert settings.integers("layers", 2) == [1, 0]
    assert settings.integers("absent", 2) is None
    assert settings.numbers("factors") == (1.0, 2.5)
    for read, match in (
        (lambda: settings.integers("layers", 3), "layers = .* must be a list of 3 integers"),
        (lambda: settings.integers("factors", 2), "factors = 2.5 must be of type int"),
        (lambda: settings.numbers("bad"), "bad = 'x' must be of type float"),
        (lambda: settings.numbers("empty"), "empty = .* must be a list of numbers"),
        (lambda: settings.numbers("absent"), "absent = None must be a list of numbers"),
    ):
        with pytest.raises(InputError, match=match):
            read()


def test_the_key_of_an_error_is_one_that_the_setting_read() -> None:
    """And not another key with the same number, which is right."""
    settings = Settings({"dropout": 0.0, "eps": 0.0, "rope": {"factors": [2.0, 0.0]}})
    settings.get("dropout", 0.1)
    with settings.reading():
        settings.get("eps", 1e-5)
    assert settings.key_of(0.0) == "eps = 0.0: "
    with settings.reading():
        settings.table("rope")
    assert settings.key_of(0.0) == "rope.factors[1] = 0.0: "
    assert settings.key_of(7) == "rope.factors[0] = 2.0, rope.factors[1] = 0.0: "
    with settings.reading():
        pass
    assert settings.key_of(0.0) == ""


@pytest.mark.parametrize("number", [math.nan, math.inf, -1e13])
def test_a_number_that_no_model_has_is_refused(number: float) -> None:
    with pytest.raises(InputError, match=r"c: eps = .* must be a number within ±1e\+12"):
        Settings({"eps": number}, "c").get("eps", 1e-5)
