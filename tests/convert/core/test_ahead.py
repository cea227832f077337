"""Layers that predict further ahead: read as ours where a file's are, and written back."""

import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import made
from tests.parity.test_families import FAMILIES
from tests.parity.test_linear_hybrids import FAMILIES as HYBRIDS
from tests.parity.test_linear_hybrids import both_kinds
from torch.testing import assert_close

from addnorm.checking.wide import Wide
from addnorm.convert.folder import LoadedModel, load, save
from addnorm.errors import IgnoredSettings, InputError
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.nn.token_ahead import MultiTokenConfig

pytestmark = pytest.mark.parity

TOKENS = torch.tensor([[5, 9, 7, 3, 8, 4], [6, 3, 3, 9, 5, 7]])
N_AHEAD = 2
TEXT = {"qwen3_next": "", "qwen3_5": "_text", "qwen3_5_moe": "_text"}
"""How a model of text alone is named."""


def with_layers_ahead(name: str, folder: Path, seed: int = 1) -> tuple[Any, Any]:
    """A folder of DeepSeek or GLM with two layers ahead; their model, and their layers ahead."""
    stem, draw = FAMILIES[name]
    tree = draw(random.Random(f"{name} {seed}")) | {"num_mtp_layers": N_AHEAD}
    tree["first_k_dense_replace"] = 0
    theirs, _ = made(f"{stem}ForCausalLM", getattr(transformers, f"{stem}Config")(**tree), folder)
    theirs.set_experts_implementation("eager")  # the grouped one has no float64
    with Wide():
        ahead = transformers.modeling_layers.MtpModel(theirs, N_AHEAD).double().eval()
    ahead.set_experts_implementation("eager")
    with torch.no_grad():
        for layer in ahead.layers:
            for weight in layer.parameters():
                weight.copy_((torch.randn(weight.shape) * 0.3).float())
    n = theirs.config.num_hidden_layers
    tensors = load_file(folder / "model.safetensors")
    for k in range(N_AHEAD):
        tensors |= stored(ahead.layers[k], f"model.layers.{n + k}")
        tensors[f"model.layers.{n + k}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    save_file({name: w.contiguous().clone() for name, w in tensors.items()},
              folder / "model.safetensors")  # fmt: skip
    return theirs, ahead


def stored(layer: Any, name: str) -> dict[str, torch.Tensor]:
    """The tensors of a layer ahead as they are published, experts one by one."""
    tensors: dict[str, torch.Tensor] = {}
    for part, weight in layer.float().state_dict().items():
        part = part.removeprefix("mtp_block.").replace("post_norm.", "shared_head.norm.")
        if part.endswith("experts.gate_up_proj"):
            for i, pair in enumerate(weight):
                for kind, half in zip(("gate", "up"), pair.chunk(2), strict=True):
                    tensors[f"{name}.mlp.experts.{i}.{kind}_proj.weight"] = half
        elif part.endswith("experts.down_proj"):
            for i, down in enumerate(weight):
                tensors[f"{name}.mlp.experts.{i}.down_proj.weight"] = down
        else:
            tensors[f"{name}.{part}"] = weight
    layer.double()
    return tensors


def loaded_decoder(folder: Path) -> tuple[LoadedModel, DecoderModel]:
    loaded = load(folder, dtype=torch.float64)
    assert isinstance(loaded.model, DecoderModel)
    return loaded, loaded.model


def check_states_ahead(theirs: Any, ahead: Any, model: DecoderModel) -> None:
    """The states of each depth, of positions that their layers count from the tokens ahead."""
    with torch.no_grad(), Wide():
        hidden = theirs(TOKENS, output_hidden_states=True).hidden_states[-1]
        ours = list(model.hidden_ahead(model.hidden(TOKENS)[0], TOKENS))
        assert len(ours) == N_AHEAD
        for k, (got, _) in enumerate(ours, start=1):
            n = TOKENS.shape[1] - k
            cache = transformers.cache_utils.MtpCache(config=theirs.config.get_mtp_config())
            hidden = ahead.forward_layer(
                k - 1, hidden[:, :n], torch.arange(k, k + n)[None], cache, input_ids=TOKENS[:, k:]
            )
            assert_close(got, hidden, rtol=0, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("name", ["deepseek_v3", "glm4_moe"])
def test_the_states_ahead_are_theirs(name: str, tmp_path: Path) -> None:
    theirs, ahead = with_layers_ahead(name, tmp_path)
    loaded, model = loaded_decoder(tmp_path)
    assert isinstance(loaded.spec.model, DecoderConfig)
    assert loaded.spec.model.mtp == MultiTokenConfig(depth=N_AHEAD)
    check_states_ahead(theirs, ahead, model)
    save(tmp_path / "saved", loaded.spec, model, None, model_type=name)
    again = load(tmp_path / "saved", dtype=torch.float64)
    assert again.spec == loaded.spec
    weights, same = model.state_dict(), again.model.state_dict()
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def with_qwens_layer(name: str, folder: Path) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """A folder of Qwen with one layer ahead; their model, that layer as a model, and the rest."""
    last = {"layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2}
    config, stem = both_kinds(name, **last), HYBRIDS[name][0]
    theirs, _ = made(f"{stem}ForCausalLM", config, folder)
    alone = deepcopy(config)
    alone.num_hidden_layers, alone.layer_types = 1, ["full_attention"]
    ahead, _ = made(f"{stem}ForCausalLM", alone, folder / "ahead")
    layer = {
        key.replace("model.", "mtp.", 1): weight
        for key, weight in load_file(folder / "ahead" / "model.safetensors").items()
        if key.startswith(("model.layers.0.", "model.norm."))
    }
    d = config.hidden_size
    own = {
        "mtp.pre_fc_norm_embedding.weight": 0.3 * torch.randn(d),
        "mtp.pre_fc_norm_hidden.weight": 0.3 * torch.randn(d),
        "mtp.fc.weight": torch.randn(d, 2 * d),
    }
    file = folder / "model.safetensors"
    save_file(load_file(file) | layer | own, file)
    return theirs, ahead, own


@pytest.mark.long
@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5", "qwen3_5_moe"])
def test_the_layer_ahead_of_qwen(name: str, tmp_path: Path) -> None:
    """By the layout of its files: the norm of the embedding comes first, each with a gain 1 + g."""
    theirs, ahead, own = with_qwens_layer(name, tmp_path)
    for model in (theirs, ahead):
        if name != "qwen3_5":
            model.set_experts_implementation("eager")  # the grouped one has no float64
    loaded, model = loaded_decoder(tmp_path)
    eps = theirs.config.rms_norm_eps

    def normed(part: str, x: torch.Tensor) -> torch.Tensor:
        gain = 1 + own[f"mtp.pre_fc_norm_{part}.weight"].double()
        return gain * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()

    with torch.no_grad(), Wide():
        hidden = theirs.model(TOKENS).last_hidden_state[:, :-1]
        token = theirs.get_input_embeddings()(TOKENS[:, 1:])
        halves = torch.cat([normed("embedding", token), normed("hidden", hidden)], dim=-1)
        inputs = halves @ own["mtp.fc.weight"].double().T
        expected = ahead.model(inputs_embeds=inputs).last_hidden_state
        [(got, _)] = model.hidden_ahead(model.hidden(TOKENS)[0], TOKENS)
    assert_close(got, expected, rtol=0, atol=1e-9)
    save(tmp_path / "saved", loaded.spec, model.float(), None, model_type=f"{name}{TEXT[name]}")
    first, again = (
        load_file(folder / "model.safetensors") for folder in (tmp_path, tmp_path / "saved")
    )
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_other_layers_than_ours_are_left_aside(tmp_path: Path) -> None:
    """A layer with a tensor that the last of the model lacks, and a table that is no copy."""
    with_layers_ahead("glm4_moe", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(".eh_proj.weight"))
    block = name.removesuffix(".eh_proj.weight")
    save_file(tensors | {f"{block}.embed_tokens.weight": torch.ones_like(
        tensors["model.embed_tokens.weight"])}, file)  # fmt: skip
    with pytest.raises(InputError, match=r"embed_tokens\.weight .* they differ"):
        load(tmp_path)
    without = {key: weight for key, weight in tensors.items() if not key.startswith(block)}
    n = int(block.rpartition(".")[2])
    moved = {key.replace(f"layers.{n + 1}.", "layers.46."): w for key, w in without.items()}
    save_file(moved, file)
    with pytest.warns(IgnoredSettings, match=r"layers\.46\.\* are left aside"):
        assert isinstance(config := load(tmp_path).spec.model, DecoderConfig)
    assert config.mtp is None
