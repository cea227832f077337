"""CLIP and SigLIP folders, and each of their encoders, against transformers."""

import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.parity.families import made
from torch import Tensor
from torch.testing import assert_close

from addnorm.checking.wide import Wide
from addnorm.convert.core.settings import Settings
from addnorm.convert.folder import load, read_config, save
from addnorm.convert.registry import family_of
from addnorm.errors import InputError

pytestmark = pytest.mark.parity

Draw = random.Random
Keys = dict[str, Any]
VOCAB, LONGEST = 23, 9
END = VOCAB - 1


def sizes(draw: Draw) -> Keys:
    n_heads = draw.choice((1, 2, 3))
    return {
        "hidden_size": n_heads * draw.choice((4, 5, 8)),
        "num_attention_heads": n_heads,
        "num_hidden_layers": draw.randint(1, 3),
        "intermediate_size": draw.randint(5, 30),
        "hidden_act": draw.choice(("quick_gelu", "gelu", "gelu_pytorch_tanh", "relu")),
        "layer_norm_eps": draw.choice((1e-5, 1e-6, 1e-3)),
    }


def texts(draw: Draw) -> Keys:
    ids = {"bos_token_id": 0, "eos_token_id": END, "pad_token_id": draw.choice((1, 5))}
    return sizes(draw) | ids | {"vocab_size": VOCAB, "max_position_embeddings": LONGEST}


def pictures(draw: Draw) -> Keys:
    patch = draw.choice((2, 3))
    return sizes(draw) | {
        "patch_size": patch,
        "image_size": patch * draw.randint(1, 4),
        "num_channels": draw.choice((1, 3)),
    }


def clip(draw: Draw) -> Any:
    width = draw.randint(3, 9)
    tables = {"text_config": texts(draw), "vision_config": pictures(draw)}
    start = draw.choice((2.6592, 0.5))
    return transformers.CLIPConfig(**tables, projection_dim=width, logit_scale_init_value=start)


def siglip(draw: Draw) -> Any:
    image = pictures(draw)
    text = texts(draw) | {"projection_size": image["hidden_size"]}
    return transformers.SiglipConfig(text_config=text, vision_config=image)


def half(name: str, keys: Callable[[Draw], Keys], **fixed: Any) -> Callable[[Draw], Any]:
    return lambda draw: getattr(transformers, name)(**keys(draw), **fixed)


CLASSES: dict[str, Callable[[Draw], Any]] = {
    "CLIPModel": clip,
    "SiglipModel": siglip,
    "CLIPTextModel": half("CLIPTextConfig", texts),
    "CLIPTextModelWithProjection": half("CLIPTextConfig", texts, projection_dim=5),
    "CLIPVisionModel": half("CLIPVisionConfig", pictures),
    "CLIPVisionModelWithProjection": half("CLIPVisionConfig", pictures, projection_dim=5),
    "SiglipVisionModel": half("SiglipVisionConfig", pictures),
}


def ragged() -> tuple[Tensor, Tensor]:
    """Texts of unequal lengths that end in the end token, and the mask of their tokens."""
    lengths = torch.tensor([LONGEST, 2, 5])
    tokens = torch.randint(6, END, (3, LONGEST))
    valid = torch.arange(LONGEST) < lengths[:, None]
    tokens[torch.arange(3), lengths - 1] = END
    return tokens, valid


def images(config: Any) -> Tensor:
    config = getattr(config, "vision_config", config)
    shape = (2, config.num_channels, config.image_size, config.image_size)
    return torch.randn(shape, dtype=torch.float64)


def expected(theirs: Any, kind: str, pixels: Tensor | None, ids: Tensor) -> Tensor:
    """Logits by picture and text, or the vectors of one encoder."""
    texts = getattr(theirs.config, "text_config", theirs.config)
    if kind.startswith("Siglip") and "Vision" not in kind:  # reads padding like any token
        ids = torch.where(ids < 0, texts.pad_token_id, ids)
    elif kind.startswith("CLIP") and "Vision" not in kind:  # is read up to its end
        ids = torch.where(ids < 0, END, ids)
    with torch.no_grad(), Wide():
        if kind in ("CLIPModel", "SiglipModel"):
            return theirs(input_ids=ids, pixel_values=pixels).logits_per_image
        output = theirs(pixel_values=pixels) if "Vision" in kind else theirs(input_ids=ids)
    return output[0] if kind.endswith("Projection") else output.pooler_output


def inputs(kind: str, pixels: Tensor, tokens: Tensor, valid: Tensor) -> tuple[Tensor, ...]:
    if "Vision" in kind:
        return (pixels,)
    return (tokens, valid) if "Text" in kind else (pixels, tokens, valid)


def check(kind: str, seed: int, folder: Path) -> None:
    """The same numbers in float64 and float32, padded on either side, and both directions."""
    config = CLASSES[kind](random.Random(f"{kind} {seed}"))
    theirs, loaded = made(kind, config, folder)
    reads = getattr(config, "vision_config", config)
    pixels = images(config) if hasattr(reads, "image_size") else torch.zeros(1)
    tokens, valid = ragged()
    right = expected(theirs, kind, pixels, torch.where(valid, tokens, -1))
    for dtype, near in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model = deepcopy(loaded.model).to(dtype)
        scale = max(1.0, float(right.abs().max())) if dtype == torch.float32 else 1.0
        for side in ("right", "left"):
            order = torch.argsort(valid.int() if side == "left" else (~valid).int(), stable=True)
            moved = (tokens.gather(1, order), valid.gather(1, order))
            with torch.no_grad():
                found = model(*inputs(kind, pixels.to(dtype), *moved))
            assert_close(found.double(), right, rtol=0, atol=near * scale)
    out = folder / "exported"
    ids = {"eos_token_id": END}
    save(out, loaded.spec, loaded.model, None, model_type=theirs.config.model_type, ids=ids)
    again = load(out)
    assert again.spec == loaded.spec
    weights, same = loaded.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(weights[name], same[name]) for name in {**weights, **same})
    with Wide():
        opened, info = getattr(transformers, kind).from_pretrained(
            out, output_loading_info=True, dtype=torch.float64
        )
    assert not any(info.values()), info
    assert_close(expected(opened, kind, pixels, torch.where(valid, tokens, -1)), right)


@pytest.mark.long
@pytest.mark.parametrize("kind", CLASSES)
def test_equal_to_transformers(kind: str, tmp_path: Path) -> None:
    check(kind, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 31))
@pytest.mark.parametrize("kind", CLASSES)
def test_random_configurations(kind: str, seed: int, tmp_path: Path) -> None:
    check(kind, seed, tmp_path)


REFUSED = [
    ("CLIPModel", {"architectures": ["CLIPForImageClassification"]}, "only ..CLIPModel"),
    ("CLIPModel", {"text_config": {"hidden_act": "gulu"}}, "Did you mean 'gelu'"),
    ("CLIPModel", {"vision_config": {"image_size": [4, 8]}}, "pictures must be square"),
    ("CLIPModel", {"vision_config": {"something_new": 3}}, "something_new = 3 is not supported"),
    ("CLIPModel", {"something_new": 3}, "something_new = 3 is not supported"),
    ("SiglipModel", {"text_config_dict": {"hidden_size": 4}}, "text_config_dict = "),
    ("SiglipModel", {"vision_config": {"vision_use_head": False}}, "vision_use_head = False"),
    ("SiglipModel", {"text_config": {"projection_size": 2}}, "vectors of 2 numbers and pictures"),
    ("CLIPTextModel", {"architectures": ["CLIPModel"]}, "Valid: CLIPTextModelWithProjection"),
]


@pytest.mark.parametrize(("kind", "changes", "message"), REFUSED)
def test_unsupported_settings_are_named(kind: str, changes: Keys, message: str) -> None:
    tree = CLASSES[kind](random.Random("0")).to_dict()
    for key, value in changes.items():
        tree[key] = tree.get(key, {}) | value if isinstance(value, dict) else value
    settings = Settings(tree)
    with pytest.raises(InputError, match=message):
        read_config(family_of(settings), settings)


def test_absent_keys_are_those_of_transformers() -> None:
    for kind, config in (
        ("clip", transformers.CLIPConfig()),
        ("siglip", transformers.SiglipConfig()),
    ):
        whole, bare = Settings(config.to_dict()), Settings({"model_type": kind})
        assert read_config(family_of(bare), bare) == read_config(family_of(whole), whole)


def test_an_older_table_takes_the_place_of_the_newer() -> None:
    tree = CLASSES["CLIPModel"](random.Random("0")).to_dict()
    older = {"vision_config_dict": {"patch_size": 16, "hidden_act": "gelu"}}
    settings = Settings(tree | older)
    theirs = transformers.CLIPConfig(**tree, **older).to_dict()
    again = Settings(theirs)
    assert read_config(family_of(settings), settings) == read_config(family_of(again), again)
