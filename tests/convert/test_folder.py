"""Whole folders: lazy and fast loading, damage reported, no code executed."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Settings
from addnorm.convert.folder import (
    build_untrained,
    family_of,
    hf_model_type,
    is_hf_folder,
    load,
    read_config,
    save,
)
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig, EagerCoreConfig
from addnorm.nn.attention.differential import DifferentialCoreConfig
from addnorm.nn.attention.outputs import GatedOutputConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.masks import Window
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import LearnedConfig, RotaryConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.nn.types import HeadShape


def gpt2(d_model: int = 8, n_layers: int = 2, **changes: Any) -> DecoderConfig:
    parts: dict[str, Any] = {
        "d_model": d_model,
        "n_layers": n_layers,
        "max_len": 16,
        "position": LearnedConfig(),
        "attention": AttentionConfig(n_heads=2),
        "feedforward": FeedForwardConfig(activation="gelu_tanh"),
        "residual": PreNormConfig(),
        "embedding": EmbeddingConfig(scale="one"),
    }
    return DecoderConfig(**parts | changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "model"
    assert save(out, ModelSpec(model=gpt2(), vocab_size=11), gpt2().build(11), None) == "gpt2"
    return out


def change(folder: Path, **keys: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def test_a_hugging_face_folder_is_known_by_its_model_type(folder: Path, tmp_path: Path) -> None:
    assert hf_model_type(folder) == "gpt2"
    assert is_hf_folder(folder)
    assert not is_hf_folder(tmp_path)
    assert not is_hf_folder(folder / "config.json")


def test_no_code_of_a_folder_is_run(folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w').close()"
    (folder / "modeling_evil.py").write_text(code)
    change(folder, auto_map={"AutoModel": "modeling_evil.Evil"}, _attn_implementation="evil/kernel")
    load(folder)
    assert not canary.exists()


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


@pytest.mark.parametrize("pickled", [False, True])
def test_a_pickle_is_never_run(pickled: bool, folder: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(canary)))
    with pytest.raises(InputError, match=r"pytorch_model\.bin"):
        load(folder, pickled=pickled)
    assert not canary.exists()


def test_a_pickle_loads_on_request(folder: Path) -> None:
    expected = load(folder).model.state_dict()
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    found = load(folder, pickled=True).model.state_dict()
    assert all(torch.equal(found[name], one) for name, one in expected.items())


def test_a_stored_tied_head_must_equal_the_table(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    same = weights["transformer.wte.weight"]
    save_file(weights | {"lm_head.weight": same.clone()}, folder / "model.safetensors")
    load(folder)
    save_file(weights | {"lm_head.weight": same + 1}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"ties lm_head\.weight to .* and they differ"):
        load(folder)


def test_an_untied_head_that_is_missing_is_named(folder: Path) -> None:
    change(folder, tie_word_embeddings=False)
    with pytest.raises(InputError, match=r"missing lm_head\.weight"):
        load(folder)


def test_shapes_that_do_not_fit_are_named(folder: Path) -> None:
    change(folder, n_positions=17)
    with pytest.raises(InputError, match=r"position\.table\.weight has shape \(16, 8\), expected"):
        load(folder)


def test_an_inexpressible_model_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    model = gpt2(norm=RMSNormConfig())
    with pytest.raises(InputError, match=r"model\.norm = 'rmsnorm' would become 'layernorm'"):
        save(
            tmp_path / "out",
            ModelSpec(model=model, vocab_size=11),
            model.build(11),
            None,
            model_type="gpt2",
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_gigabyte_opens_in_two_seconds_and_takes_its_own_size(tmp_path: Path) -> None:
    """Loaded and used once, the peak is at most 1.15 times the weights beside what torch takes."""
    model = gpt2(d_model=1024, n_layers=20)
    spec = ModelSpec(model=model, vocab_size=4096)
    save(tmp_path, spec, build_untrained(spec), None)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size > 10**9
    (tmp_path / "model.safetensors").read_bytes()  # into the page cache
    code = f"""
import resource, time, torch
from pathlib import Path
from addnorm.convert.folder import load
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, start = peak(), time.perf_counter()
model = load(Path({str(tmp_path)!r})).model
seconds = time.perf_counter() - start
with torch.inference_mode():
    model(torch.tensor([[1, 2, 3]]))
print(seconds, peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, grown = map(float, done.stdout.split())
    assert seconds < 2
    assert grown < 1.15 * size


def _changed_window(model: Any) -> None:
    model.stack.blocks[1].attention.pattern = Window(3)


def _changed_eps(model: Any) -> None:
    model.stack.norm.eps = 0.5


def _added_gate(model: Any) -> None:
    heads = HeadShape(n_heads=2, n_kv_heads=2, d_head=8)
    model.stack.blocks[0].attention.output = GatedOutputConfig().build(16, heads, 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_changed_window, r"attention.pattern \(Window\(size=3\)\) of layer 1"),
        (_changed_eps, r"stack.norm.eps \(0.5\): it knows 1e-06 there"),
        (_added_gate, r"attention.output \(GatedOutput\) of layer 0: it knows PlainOutput there"),
    ],
)
def test_a_model_changed_after_the_build_is_refused(change: Any, says: str, tmp_path: Path) -> None:
    config = DecoderConfig(
        d_model=16,
        n_layers=2,
        attention=AttentionConfig(n_heads=2, bias=False),
        position=RotaryConfig(),
        feedforward=GatedFeedForwardConfig(),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
    )
    model = config.build(11)
    spec = ModelSpec(model=config, vocab_size=11)
    save(tmp_path / "good", spec, model, None)
    change(model)
    with pytest.raises(InputError, match=f"Hugging Face cannot hold {says}"):
        save(tmp_path / "bad", spec, model, None)
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("core", [EagerCoreConfig(), DifferentialCoreConfig()])
def test_only_cores_that_compute_the_same_function_are_exported(core: Any, tmp_path: Path) -> None:
    attention = AttentionConfig(n_heads=2, bias=False, core=core)
    config = DecoderConfig(
        d_model=16,
        n_layers=1,
        attention=attention,
        position=RotaryConfig(),
        feedforward=GatedFeedForwardConfig(),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
    )
    spec = ModelSpec(model=config, vocab_size=11)
    if isinstance(core, EagerCoreConfig):
        assert save(tmp_path / "out", spec, config.build(11), None) == "llama"
        return
    with pytest.raises(InputError, match=r"model.attention.core = 'differential' would become"):
        save(tmp_path / "out", spec, config.build(11), None)


TINY = {"vocab_size": 32, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
GPT2 = {**TINY, "model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 9}
T5 = {
    **TINY,
    "model_type": "t5",
    "d_model": 8,
    "d_ff": 9,
    "num_layers": 1,
    "num_heads": 2,
    "dropout_rate": 0.0,
}
BART = {
    **TINY,
    "model_type": "bart",
    "d_model": 8,
    "max_position_embeddings": 9,
    **{f"{side}_{key}": 2 for side in ("encoder", "decoder") for key in ("layers", "ffn_dim")},
    **{f"{side}_attention_heads": 2 for side in ("encoder", "decoder")},
}


def described(folder: Path, config: dict[str, Any]) -> str:
    """What is said of a config.json; nothing of one that is read."""
    settings = Settings(config, str(folder / "config.json"))
    try:
        read_config(family_of(settings), settings)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("config", "name", "reason"),
    [
        (GPT2, "GPT2ForSequenceClassification", "a head that classifies texts"),
        (GPT2, "GPT2ForTokenClassification", "a head for tags"),
        (GPT2, "GPT2DoubleHeadsModel", "a second head"),
        (T5, "T5EncoderModel", "is without the decoder"),
        (T5, "T5ForQuestionAnswering", "a head for spans of answers"),
        (BART, "BartForCausalLM", "is without the encoder"),
        (BART, "BartForSequenceClassification", "a head that classifies texts"),
        (GPT2, "GPT2LMHeadModel", ""),
        (GPT2, "GPT2Model", ""),
        (T5, "T5ForConditionalGeneration", ""),
        (BART, "BartModel", ""),
    ],
)
def test_unsupported_classes_are_refused_with_the_reason(
    config: dict[str, Any], name: str, reason: str, tmp_path: Path
) -> None:
    said = described(tmp_path, {**config, "architectures": [name]})
    assert bool(said) == bool(reason)
    assert reason in said
    assert not reason or f"architectures = ['{name}'] is not supported" in said


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        (GPT2, "layer_norm_epsilon", 0.0),
        (GPT2, "resid_pdrop", 1.5),
        (T5, "dropout_rate", 2.0),
        (T5, "relative_attention_num_buckets", 0),
        (BART, "attention_dropout", -1),
    ],
)
def test_a_number_out_of_range_is_named_with_its_key(
    config: dict[str, Any], key: str, value: float, tmp_path: Path
) -> None:
    said = described(tmp_path, {**config, key: value})
    assert f"config.json: {key} = {value!r}" in said.replace("-1.0", "-1")


def test_no_similar_activation_is_suggested(tmp_path: Path) -> None:
    said = described(tmp_path, {**GPT2, "activation_function": "leaky_relu"})
    assert "activation_function = 'leaky_relu' is not supported. Valid: relu" in said
    assert "Did you mean" not in said
    assert "mean 'gelu'" in described(tmp_path, {**GPT2, "activation_function": "gleu"})


LLAMA = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "vocab_size": 30,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("granite", "logits_scaling", 0),
        ("granite", "logits_scaling", -2.0),
        ("smollm3", "no_rope_layer_interval", 0),
        ("smollm3", "no_rope_layer_interval", -3),
    ],
)
def test_a_number_that_must_be_positive_is_refused_by_its_key(
    kind: str, key: str, value: float
) -> None:
    tree = {"model_type": kind, "intermediate_size": 32, **LLAMA, key: value}
    with pytest.raises(InputError, match=rf"config\.json: {key} = {value}"):
        read_config(family_of(Settings(tree)), Settings(tree))
