"""Weight folders: round trips, missing files, and pickles only on request."""

import json
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.convert.folders import (
    INDEX,
    TENSORS,
    Evil,
    contents,
    in_shards,
    opened_files,
    refused,
    same,
    with_index,
)
from torch import Tensor

from addnorm.convert.weights.files import Weights, save_folder_weights
from addnorm.convert.weights.mapped import DTYPES

SAVED = sorted(DTYPES.values(), key=str)


# Round trips


def tensor_of(dtype: torch.dtype, shape: list[int], data: bytes, turned: bool) -> Tensor:
    if dtype is torch.bool:
        data = bytes(byte & 1 for byte in data)
    whole = torch.zeros(shape, dtype=dtype)
    whole.view(-1).view(torch.uint8)[:] = torch.tensor(list(data), dtype=torch.uint8)
    return whole.T if turned and whole.dim() == 2 else whole


@st.composite
def any_tensor(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(SAVED))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = dtype.itemsize * torch.Size(shape).numel()
    return tensor_of(
        dtype, shape, draw(st.binary(min_size=size, max_size=size)), draw(st.booleans())
    )


names = st.text(st.characters(codec="utf-8"), max_size=9).filter(
    lambda name: name != "__metadata__"
)


@settings(max_examples=50)
@given(st.dictionaries(names, any_tensor(), max_size=6), st.integers(0, 100))
def test_what_was_saved_is_read_in_one_file_as_in_shards(
    tensors: dict[str, Tensor], shard_bytes: int
) -> None:
    with TemporaryDirectory() as folder:
        one, many = Path(folder, "one"), Path(folder, "many")
        save_folder_weights(one, tensors)
        save_folder_weights(many, tensors, max_shard_bytes=shard_bytes)
        for place in (one, many):
            weights = Weights.open(place)
            same(weights, tensors)
            assert weights.nbytes == sum(tensor.nbytes for tensor in tensors.values())
            assert {name: weights.shape(name) for name in weights} == {
                name: tuple(tensor.shape) for name, tensor in tensors.items()
            }
            assert all(weights.dtype(name) == tensor.dtype for name, tensor in tensors.items())
        same(load_file(one / "model.safetensors"), tensors)


def test_a_mapping_like_any_other(tmp_path: Path) -> None:
    save_folder_weights(tmp_path, TENSORS)
    weights = Weights.open(tmp_path)
    assert len(weights) == 4
    assert set(weights) == set(TENSORS)
    assert "c" in weights
    assert "e" not in weights
    assert weights.get("e") is None
    for look in (weights.__getitem__, weights.shape, weights.dtype):
        with pytest.raises(KeyError, match="e"):
            look("e")


def test_shards_are_filled_in_order(tmp_path: Path) -> None:
    tensors = {
        name: torch.zeros(size, dtype=torch.uint8)
        for name, size in zip("zyxwv", [4, 6, 1, 20, 3], strict=True)
    }
    save_folder_weights(tmp_path, tensors, max_shard_bytes=10)
    index = json.loads((tmp_path / INDEX).read_text())
    first, second, third, fourth = (f"model-0000{i}-of-00004.safetensors" for i in range(1, 5))
    assert index == {
        "metadata": {"total_size": 34},
        "weight_map": {"z": first, "y": first, "x": second, "w": third, "v": fourth},
    }
    assert list(index["weight_map"]) == list("zyxwv")
    assert list(Weights.open(tmp_path)) == list("zyxwv")
    assert set(contents(tmp_path)) == {first, second, third, fourth, INDEX}
    save_folder_weights(tmp_path / "exactly", tensors, max_shard_bytes=34)
    assert set(contents(tmp_path / "exactly")) == {"model.safetensors"}


def test_files_are_of_pytorch_and_as_open_to_others_as_any(tmp_path: Path) -> None:
    in_shards(tmp_path)
    (tmp_path / "plain").touch()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1
    shard = (tmp_path / "model-00001-of-00004.safetensors").read_bytes()
    header = json.loads(shard[8 : 8 + int.from_bytes(shard[:8], "little")])
    assert header["__metadata__"] == {"format": "pt"}


def test_weights_may_be_saved_over_the_folder_they_are_read_from(tmp_path: Path) -> None:
    save_folder_weights(tmp_path, TENSORS)
    weights = Weights.open(tmp_path)
    in_shards(tmp_path, weights)
    same(weights, TENSORS)
    same(Weights.open(tmp_path), TENSORS)


def test_parameters_are_saved_as_they_are(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 3)
    save_folder_weights(tmp_path, dict(layer.named_parameters()))
    same(Weights.open(tmp_path), layer.state_dict())


# What is in a folder


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none", "no such folder")
    (tmp_path / "file").touch()
    refused(tmp_path / "file", "no such folder")


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        ([], f"looked for model.safetensors, {INDEX}."),
        (["config.json"], f"looked for model.safetensors, {INDEX}."),
        (["pytorch_model.bin"], "has pytorch_model.bin, a pickle: ask for it"),
        (["pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin"], "a pickle: ask for"),
        (["tf_model.h5"], "'tf_model.h5': write it as safetensors with the library that made it"),
        (["flax_model.msgpack"], "'flax_model.msgpack': write it as safetensors"),
        (["model-q4.gguf"], "'model-q4.gguf': write it as safetensors"),
        (["weights.pt"], "'weights.pt': write it as safetensors"),
        (["adapter_model.safetensors", "x.bin"], "'adapter_model.safetensors': was it renamed"),
        (["model-00001-of-00002.safetensors"], "is its index missing?"),
    ],
)
def test_a_folder_without_weights_is_refused_with_a_hint(
    tmp_path: Path, names: list[str], hint: str
) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert "no weights: looked for model.safetensors" in refused(tmp_path, hint)


def test_asked_for_pickles_are_among_what_was_looked_for(tmp_path: Path) -> None:
    refused(tmp_path, "pytorch_model.bin, pytorch_model.bin.index.json.", pickled=True)


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_a_truncated_file_is_named(tmp_path: Path, size: int) -> None:
    save_folder_weights(tmp_path, TENSORS)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    refused(tmp_path, "model.safetensors: truncated")
    folder = in_shards(tmp_path / "many")
    shard = folder / "model-00002-of-00004.safetensors"
    shard.write_bytes(shard.read_bytes()[:size])
    refused(folder, f"{shard.name}: truncated")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    refused(tmp_path, "model.safetensors: not a file")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / INDEX).mkdir()
    refused(tmp_path, f"{INDEX}: not a file")


# Pickles


def pickled(folder: Path, content: Any, shards: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    if shards == 1:
        torch.save(content, folder / "pytorch_model.bin")
        return folder
    listed: dict[str, str] = {}
    for i, (name, tensor) in enumerate(content.items()):
        file = f"pytorch_model-{i:05d}.bin"
        torch.save({name: tensor}, folder / file)
        listed[name] = file
    index = {"metadata": {}, "weight_map": listed}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("shards", [1, 4])
def test_pickles_are_read_only_on_request(tmp_path: Path, shards: int) -> None:
    pickled(tmp_path, TENSORS, shards)
    with opened_files() as opened:
        refused(tmp_path, "has pytorch_model.bin, a pickle: ask for it (pickled=True)")
    assert not opened
    weights = Weights.open(tmp_path, pickled=True)
    same(weights, TENSORS)
    assert weights.nbytes == 24 + 8 + 8


@pytest.mark.parametrize("shards", [1, 2])
def test_a_pickle_with_code_is_never_run(tmp_path: Path, shards: int) -> None:
    canary = tmp_path / "canary"
    folder = pickled(tmp_path / "home", {"w": torch.ones(1), "x": Evil(canary)}, shards)
    refused(folder, "a pickle: ask for it")
    assert not canary.exists()
    refused(folder, "refused: it is damaged or holds more than tensors", pickled=True)
    assert not canary.exists()


def test_safetensors_come_before_pickles(tmp_path: Path) -> None:
    pickled(tmp_path, {"w": Evil(tmp_path / "canary")})
    save_folder_weights(tmp_path, TENSORS)
    same(Weights.open(tmp_path, pickled=True), TENSORS)


def test_an_index_of_safetensors_never_leads_to_a_pickle(tmp_path: Path) -> None:
    pickled(tmp_path, {"w": Evil(tmp_path / "canary")})
    with_index(tmp_path, {"weight_map": {"w": "pytorch_model.bin"}})
    refused(tmp_path, "pytorch_model.bin: ", pickled=True)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("link", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_a_pickle_elsewhere_is_refused(tmp_path: Path, link: str) -> None:
    pickled(tmp_path, TENSORS)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / link).symlink_to(tmp_path / "pytorch_model.bin")
    refused(tmp_path / "home", "a link out of this folder", pickled=True)
