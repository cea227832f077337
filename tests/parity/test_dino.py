"""DeiT, DINOv2 and DINOv3 folders against transformers, over random configurations."""

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.parity.encoders import reopened
from tests.parity.families import made
from torch import Tensor
from torch.testing import assert_close

from addnorm.checking.wide import Wide
from addnorm.convert.core.settings import Settings
from addnorm.convert.folder import LoadedModel, load, read_config
from addnorm.convert.registry import family_of
from addnorm.errors import InputError

pytestmark = pytest.mark.parity

Draw = random.Random
Keys = dict[str, Any]


def sizes(draw: Draw) -> Keys:
    n_heads, patch = draw.choice((1, 2, 3)), draw.choice((2, 3, 5))
    side = patch * draw.randint(1, 4)
    return {
        "hidden_size": n_heads * draw.choice((4, 6, 7)),
        "num_attention_heads": n_heads,
        "num_hidden_layers": draw.randint(1, 3),
        "image_size": side,
        "patch_size": patch,
        "num_channels": draw.choice((1, 3)),
        "hidden_act": draw.choice(("gelu", "relu", "gelu_new")),
        "layer_norm_eps": draw.choice((1e-12, 1e-6, 1e-3)),
        "id2label": {i: f"label {i}" for i in range(draw.randint(2, 4))},
    }


def deit(draw: Draw) -> Keys:
    return sizes(draw) | {
        "intermediate_size": draw.randint(5, 30),
        "qkv_bias": draw.random() < 0.7,
    }


def dinov2(draw: Draw) -> Keys:
    return sizes(draw) | {
        "mlp_ratio": draw.randint(1, 5),
        "use_swiglu_ffn": draw.random() < 0.5,
        "layerscale_value": draw.choice((1.0, 0.1, 1e-5)),
        "qkv_bias": draw.random() < 0.7,
    }


def dinov2_without_mask(draw: Draw) -> Keys:
    return dinov2(draw) | {"use_mask_token": draw.random() < 0.5}


def dinov2_with_registers(draw: Draw) -> Keys:
    return dinov2(draw) | {"num_register_tokens": draw.randint(0, 4)}


def dinov3(draw: Draw) -> Keys:
    tree, bias = sizes(draw), draw.random() < 0.8
    patch = tree["patch_size"]
    del tree["id2label"]
    return tree | {
        "hidden_size": tree["num_attention_heads"] * draw.choice((4, 8, 12)),
        "image_size": [patch * draw.randint(1, 4), patch * draw.randint(1, 4)],
        "intermediate_size": draw.randint(5, 30),
        "use_gated_mlp": draw.random() < 0.5,
        "query_bias": bias,
        "value_bias": bias,
        "proj_bias": draw.random() < 0.8,
        "mlp_bias": draw.random() < 0.8,
        "rope_theta": draw.choice((10.0, 100.0, 1e4)),
        "num_register_tokens": draw.randint(0, 4),
    }


@dataclass(frozen=True)
class Pictures:
    """A model of pictures in transformers, with the output of its classes that ours gives."""

    stem: str
    draw: Callable[[Draw], Keys]
    picks: dict[str, str]
    interpolates: Keys
    """The arguments by which it takes pictures of other sizes."""

    def config(self, seed: int, ending: str) -> Any:
        tree = self.draw(random.Random(f"{self.stem} {ending} {seed}"))
        return getattr(transformers, f"{self.stem}Config")(**tree)

    def check(self, seed: int, ending: str, folder: Path) -> None:
        """The same numbers for pictures of the model's size and others, and both directions."""
        kind, pick, config = f"{self.stem}{ending}", self.picks[ending], self.config(seed, ending)
        theirs, loaded = made(kind, config, folder)
        check_same(theirs, folder, pictures(config, None), pick, {})
        for grid in ((1, 1), (2, 5), (6, 3)):
            check_same(theirs, folder, pictures(config, grid), pick, self.interpolates)
        check_both_ways(kind, theirs, loaded, folder, pick)


def pictures(config: Any, grid: tuple[int, int] | None) -> Tensor:
    """Random pictures of the model's size, or of this many rows and columns of patches."""
    size: Any = config.image_size
    height, width = size if isinstance(size, list | tuple) else (size, size)
    if grid is not None:
        height, width = (config.patch_size * n for n in grid)
    return torch.randn(2, config.num_channels, height, width, dtype=torch.float64)


def output(theirs: Any, images: Tensor, pick: str, **arguments: Any) -> Tensor:
    wide = images.dtype == torch.float64
    with torch.no_grad():
        if not wide:
            return theirs(pixel_values=images, **arguments)[pick]
        with Wide():
            return theirs(pixel_values=images, **arguments)[pick]


def check_same(theirs: Any, folder: Path, images: Tensor, pick: str, arguments: Keys) -> None:
    for dtype, near in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        expected = output(deepcopy(theirs).to(dtype), images.to(dtype), pick, **arguments)
        with torch.no_grad():
            got = load(folder, dtype=dtype).model(images.to(dtype))
        scale = max(1.0, float(expected.abs().max())) if dtype == torch.float32 else 1.0
        assert_close(got, expected, rtol=0, atol=near * scale)


def check_both_ways(kind: str, theirs: Any, loaded: LoadedModel, folder: Path, pick: str) -> None:
    opened = reopened(kind, theirs, loaded, folder)
    images = pictures(theirs.config, None)
    expected = output(theirs, images, pick)
    assert_close(output(opened, images, pick), expected, rtol=0, atol=1e-10)


MODEL = {"Model": "pooler_output"}
ANY_SIZE: Keys = {}

MODELS = {
    "deit": Pictures(
        "DeiT",
        deit,
        {
            **MODEL,
            "ForImageClassification": "logits",
            "ForImageClassificationWithTeacher": "logits",
        },
        {"interpolate_pos_encoding": True},
    ),
    "dinov2": Pictures(
        "Dinov2", dinov2_without_mask, {**MODEL, "ForImageClassification": "logits"}, ANY_SIZE
    ),
    "dinov2_with_registers": Pictures(
        "Dinov2WithRegisters",
        dinov2_with_registers,
        {**MODEL, "ForImageClassification": "logits"},
        ANY_SIZE,
    ),
    "dinov3": Pictures("DINOv3ViT", dinov3, MODEL, ANY_SIZE),
}
CLASSES = [(name, ending) for name, each in MODELS.items() for ending in each.picks]


@pytest.mark.long
@pytest.mark.parametrize(("name", "ending"), CLASSES)
def test_equal_to_transformers(name: str, ending: str, tmp_path: Path) -> None:
    MODELS[name].check(0, ending, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 31))
@pytest.mark.parametrize(("name", "ending"), CLASSES)
def test_random_configurations(name: str, ending: str, seed: int, tmp_path: Path) -> None:
    MODELS[name].check(seed, ending, tmp_path)


REFUSED = [
    ("deit", {"pooler_act": "relu"}, "pooler_act = 'relu'"),
    ("deit", {"patch_size": [4, 2]}, "patches must be square"),
    ("deit", {"architectures": ["DeiTForMaskedImageModeling"]}, "Valid: DeiTModel"),
    ("dinov2", {"image_size": [4, 8]}, "must be of a square"),
    ("dinov2", {"architectures": ["Dinov2Backbone"]}, "Valid: Dinov2Model"),
    ("dinov2", {"hidden_act": "gulu"}, "Did you mean 'gelu'"),
    ("dinov2", {"something_new": 3}, "something_new = 3 is not supported"),
    ("dinov2_with_registers", {"num_register_tokens": -1}, "num_register_tokens = -1"),
    ("dinov3", {"key_bias": True}, "key_bias = True is not supported, only false"),
    ("dinov3", {"query_bias": True, "value_bias": False}, "queries have query_bias = True"),
    ("dinov3", {"hidden_size": 6, "num_attention_heads": 1}, "must be a multiple of 4"),
]


@pytest.mark.parametrize(("name", "changes", "expected"), REFUSED)
def test_unsupported_settings_are_named(name: str, changes: Keys, expected: str) -> None:
    tree = MODELS[name].config(0, "Model").to_dict() | changes
    settings = Settings(tree)
    with pytest.raises(InputError, match=expected):
        read_config(family_of(settings), settings)
