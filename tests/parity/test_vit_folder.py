"""ViT folders against transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.parity.families import check_refused, made
from torch import Tensor
from torch.testing import assert_close

from addnorm.convert.folder import load, save
from addnorm.errors import InputError
from addnorm.models import EncoderConfig, EncoderModel
from addnorm.nn.heads import HiddenHeadConfig
from addnorm.nn.patches import PatchEmbeddingConfig

pytestmark = pytest.mark.parity

SMALL = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "image_size": 12,
    "patch_size": 4,
}
CONFIGS = {
    "plain": {},
    "odd": {
        "hidden_size": 21,
        "num_attention_heads": 3,
        "image_size": [12, 20],
        "num_channels": 1,
        "num_hidden_layers": 3,
    },
    "no-bias": {"qkv_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6},
}
HEADS = {"ViTForImageClassification": "logits", "ViTModel": "pooler_output"}


def config(**changes: object) -> transformers.ViTConfig:
    labels = {0: "red", 1: "green", 2: "blue"}
    return transformers.ViTConfig(**{**SMALL, "id2label": labels, **changes})


def images(theirs: Any) -> Tensor:
    shape = theirs.config.image_size
    height, width = shape if isinstance(shape, list | tuple) else (shape, shape)
    return torch.randn(2, theirs.config.num_channels, height, width, dtype=torch.float64)


def output(theirs: Any, inputs: Tensor, pick: str) -> Tensor:
    with torch.no_grad():
        return theirs(pixel_values=inputs)[pick]


def check_same(theirs: Any, folder: Path, pick: str) -> None:
    inputs = images(theirs)
    for dtype, near in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        with torch.no_grad():
            got = load(folder, dtype=dtype).model(inputs.to(dtype))
        expected = output(theirs.to(dtype), inputs.to(dtype), pick)
        scale = max(1.0, float(expected.abs().max())) if dtype == torch.float32 else 1.0
        assert_close(got, expected, rtol=0, atol=near * scale)
    theirs.double()


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_same_numbers(kind: str, changes: dict[str, object], tmp_path: Path) -> None:
    theirs, loaded = made(kind, config(**changes), tmp_path)
    check_same(theirs, tmp_path, HEADS[kind])
    out = tmp_path / "exported"
    save(out, loaded.spec, loaded.model, None, model_type="vit")
    again = load(out)
    assert again.spec == loaded.spec
    weights, same = loaded.model.state_dict(), again.model.state_dict()
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    opened, info = getattr(transformers, kind).from_pretrained(
        out, output_loading_info=True, dtype=torch.float64
    )
    assert not any(info.values()), info
    inputs = images(theirs)
    expected = output(theirs, inputs, HEADS[kind])
    assert_close(output(opened, inputs, HEADS[kind]), expected, rtol=0, atol=1e-10)
    if loaded.spec.labels:
        assert opened.config.id2label == {0: "red", 1: "green", 2: "blue"}
        assert opened.config.label2id == {"red": 0, "green": 1, "blue": 2}


def test_hidden_states(tmp_path: Path) -> None:
    theirs, loaded = made("ViTModel", config(), tmp_path)
    model, inputs = loaded.model, images(theirs)
    assert isinstance(model, EncoderModel)
    with torch.no_grad():
        found = theirs(pixel_values=inputs, output_hidden_states=True)
        x, ctx = model.embed(inputs)
        states = [x, *model.stack.layer_outputs(x, ctx)]
        last = model.stack.norm(states[-1], None)
    for got, expected in zip(states, found.hidden_states, strict=True):
        assert_close(got, expected, rtol=0, atol=1e-10)
    assert_close(last, found.last_hidden_state, rtol=0, atol=1e-10)


def test_names_of_both_times(tmp_path: Path) -> None:
    """On disk are the old names; those of today's modules are read alike."""
    theirs, _ = made("ViTForImageClassification", config(), tmp_path)
    old = load_file(tmp_path / "model.safetensors")
    assert "vit.encoder.layer.0.attention.attention.query.weight" in old
    new = {name: weight.float() for name, weight in theirs.state_dict().items()}
    assert "vit.layers.0.attention.q_proj.weight" in new
    save_file(new, tmp_path / "model.safetensors")
    check_same(theirs, tmp_path, "logits")


def test_without_a_pooler(tmp_path: Path) -> None:
    theirs, _ = made("ViTModel", config(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    bare = {name: w for name, w in weights.items() if "pooler" not in name}
    save_file(bare, tmp_path / "model.safetensors")
    check_same(theirs, tmp_path, "last_hidden_state")
    loaded = load(tmp_path)
    assert loaded.spec.model.head == HiddenHeadConfig()
    save(tmp_path / "out", loaded.spec, loaded.model, None, model_type="vit")
    assert load(tmp_path / "out").spec == loaded.spec


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architectures": ["ViTForMaskedImageModeling"]}, "Valid: ViTModel"),
        ({"patch_size": [4, 2]}, "patches must be square"),
        ({"image_size": [12]}, "a number, or a list of two"),
        ({"image_size": 13}, "does not divide into patches"),
        ({"pooler_act": "relu"}, "pooler_act = 'relu'"),
        ({"pooler_output_size": 8}, "pooler_output_size = 8"),
        ({"use_mask_token": True}, "use_mask_token = True"),
    ],
)
def test_unsupported_settings_are_named(
    changes: dict[str, object], match: str, tmp_path: Path
) -> None:
    made("ViTForImageClassification", config(), tmp_path)
    check_refused(tmp_path, changes, match)


def test_no_class_token(tmp_path: Path) -> None:
    _, loaded = made("ViTForImageClassification", config(), tmp_path)
    model = loaded.spec.model
    assert isinstance(model, EncoderConfig)
    patches = PatchEmbeddingConfig(size=(12, 12), patch=4, class_token=False)
    spec = replace(loaded.spec, model=replace(model, input=patches))
    with pytest.raises(InputError, match=r"model\.input\.class_token = False would become True"):
        save(tmp_path / "out", spec, loaded.model, None, model_type="vit")
