"""An index is never trusted, and no file outside the folder is opened."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.convert.damage import NASTY, cut, dumped, flipped
from tests.convert.folders import (
    INDEX,
    TENSORS,
    Tree,
    in_shards,
    opened_files,
    refused,
    same,
    weight_map,
    with_index,
)

from addnorm.convert.weights.files import Weights, save_folder_weights
from addnorm.errors import InputError

# The index


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("", "expected a JSON object"),
        ("[]", "expected a JSON object"),
        ("{", "damaged: "),
        ('{"weight_map": NaN}', "NaN is not JSON"),
        ('{"weight_map": {"a": "x", "a": "x"}}', "'a' is there twice"),
        ({}, "weight_map lists no tensors: None"),
        ({"weight_map": {}}, "weight_map lists no tensors"),
        ({"weight_map": ["a"]}, "weight_map lists no tensors: ['a']"),
        ({"weight_map": {"a": 3}}, "tensor 'a': 3 is not a file name"),
        ({"weight_map": {"a": None}}, "tensor 'a': None is not a file name"),
        ({"weight_map": {"a": "none"}}, "'none' is missing or a broken link"),
        ({"weight_map": {"a": "x" * 5000}}, "is missing"),
        ({"weight_map": {"a": "\ud800"}}, "surrogates"),
    ],
)
def test_a_damaged_index_is_refused_with_the_reason(
    tmp_path: Path, index: Any, message: str
) -> None:
    assert len(refused(with_index(tmp_path, index), message)) < 1000


def test_a_large_index_is_not_even_read(tmp_path: Path) -> None:
    with (tmp_path / INDEX).open("wb") as stream:
        stream.truncate(10**9)
    refused(tmp_path, "too large: a file of this kind has at most 32,000,000 bytes")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"e": "model-00001-of-00004.safetensors"}, "tensor 'e' is not in 'model-00001-of-"),
        ({"c": "model-00001-of-00004.safetensors"}, "tensor 'c' is not in 'model-00001-of-"),
        (
            {"a.weight": "model-00003-of-00004.safetensors"},
            "tensor 'a.weight' is not in 'model-00003",
        ),
    ],
)
def test_a_tensor_that_is_not_where_the_index_says(
    tmp_path: Path, change: dict[str, str], message: str
) -> None:
    index = {"weight_map": weight_map(in_shards(tmp_path)) | change}
    refused(with_index(tmp_path, index), message)


def test_a_tensor_that_the_index_does_not_list(tmp_path: Path) -> None:
    save_folder_weights(tmp_path, TENSORS, max_shard_bytes=24)
    listed = weight_map(tmp_path)
    gone = listed.pop("c")
    refused(
        with_index(tmp_path, {"weight_map": listed}),
        f"'c' is in '{gone}', but by the index nowhere",
    )


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    listed = weight_map(in_shards(tmp_path))
    twice = {"c": TENSORS["c"], "a.weight": TENSORS["a.weight"]}
    save_file(twice, tmp_path / listed["c"])
    where = f"tensor 'a.weight' is in '{listed['c']}', but by the index in '{listed['a.weight']}'"
    refused(tmp_path, where)


def test_metadata_of_an_index_is_not_believed_nor_needed(tmp_path: Path) -> None:
    listed = weight_map(in_shards(tmp_path))
    for metadata in ({"total_size": -5}, {"total_size": "many"}, [], None):
        with_index(tmp_path, {"metadata": metadata, "weight_map": listed, "more": 1})
        same(Weights.open(tmp_path), TENSORS)


# Nothing outside the folder

OUTSIDE = ["../x.safetensors", "..", ".", "", "/x", "sub/x.safetensors", "sub\\x", "C:x", "x\0"]


@pytest.fixture
def bait(tmp_path: Path) -> Path:
    """A folder of shards; beside it, a file that no shard may be."""
    save_file({"a.weight": torch.ones(1)}, tmp_path / "x.safetensors")
    folder = tmp_path / "home"
    in_shards(folder)
    (folder / "sub").mkdir()
    save_file({"a.weight": torch.ones(1)}, folder / "sub" / "x.safetensors")
    (folder / "link.safetensors").symlink_to(tmp_path / "x.safetensors")
    (folder / "broken.safetensors").symlink_to(tmp_path / "none")
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    (folder / "way").symlink_to("..")
    return folder


def within(opened: list[str], folder: Path) -> bool:
    home = folder.resolve()
    return bool(opened) and all(Path(name).resolve().is_relative_to(home) for name in opened)


@pytest.mark.parametrize("name", [*OUTSIDE, "<absolute>", "way/x.safetensors"])
def test_an_index_that_points_elsewhere_is_refused(bait: Path, name: str) -> None:
    name = str(bait.parent / "x.safetensors") if name == "<absolute>" else name
    with_index(bait, {"weight_map": weight_map(bait) | {"a.weight": name}})
    with opened_files() as opened:
        refused(bait, f"{name!r:.100} is not the name of a file in this folder")
    assert within(opened, bait)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("link.safetensors", "a link out of this folder, to"),
        ("broken.safetensors", "a broken link"),
        ("loop.safetensors", "a broken link"),
        ("way", "a link out of this folder"),
        ("sub", "not a file"),
    ],
)
def test_an_index_that_points_elsewhere_by_a_link_is_refused(
    bait: Path, name: str, message: str
) -> None:
    with_index(bait, {"weight_map": weight_map(bait) | {"a.weight": name}})
    with opened_files() as opened:
        refused(bait, message)
    assert within(opened, bait)


@pytest.mark.parametrize("name", ["model.safetensors", INDEX])
def test_a_file_that_is_itself_a_link_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    in_shards(tmp_path)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / name).symlink_to(tmp_path / INDEX)
    with opened_files() as opened:
        refused(tmp_path / "home", "a link out of this folder")
    assert not opened


def test_reading_opens_nothing_but_the_files_of_the_folder(bait: Path) -> None:
    with opened_files() as opened:
        same(Weights.open(bait), TENSORS)
    assert sorted(opened) == sorted(str(bait / n) for n in {INDEX, *weight_map(bait).values()})


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    listed = weight_map(in_shards(tmp_path))
    (tmp_path / "sub").mkdir()
    (tmp_path / listed["c"]).rename(tmp_path / "sub" / "c")
    (tmp_path / listed["c"]).symlink_to("sub/c")
    same(Weights.open(tmp_path), TENSORS)


def cached(cache: Path, blobs: str = "blobs", snapshots: str = "snapshots") -> Path:
    """The layout of huggingface_hub: a snapshot of links into the blobs."""
    snapshot = cache / snapshots / "abc"
    in_shards(snapshot)
    (cache / blobs).mkdir()
    for i, file in enumerate(list(snapshot.iterdir())):
        file.rename(cache / blobs / str(i))
        file.symlink_to(Path("..", "..", blobs, str(i)))
    return snapshot


def test_the_cache_of_hugging_face_is_read_through_its_links(tmp_path: Path) -> None:
    snapshot = cached(tmp_path / "models--x--y")
    same(Weights.open(snapshot), TENSORS)
    (tmp_path / "link").symlink_to(snapshot)
    same(Weights.open(tmp_path / "link"), TENSORS)


def test_other_caches_are_not(tmp_path: Path) -> None:
    refused(cached(tmp_path / "a", blobs="other"), "a link out of this folder")
    refused(cached(tmp_path / "b", snapshots="other"), "a link out of this folder")
    stranger = cached(tmp_path / "c")
    shard = stranger / "model-00001-of-00004.safetensors"
    shard.unlink()
    shard.symlink_to(tmp_path / "a" / "other" / "0")
    refused(stranger, "a link out of this folder")
    moved = cached(tmp_path / "d")
    (tmp_path / "d" / "blobs").rename(tmp_path / "elsewhere")
    (tmp_path / "d" / "blobs").symlink_to(tmp_path / "elsewhere")
    refused(moved, "a link out of this folder")


def edited(content: bytes, rng: Random, upto: int) -> bytes:
    tree: Tree = json.loads(content)
    listed = tree["weight_map"]
    names = [*NASTY, *OUTSIDE, *listed, *listed.values(), "link.safetensors", "way", "sub", INDEX]
    for _ in range(rng.randrange(1, 3)):
        name = rng.choice(list(listed))
        match rng.randrange(5):
            case 0:
                listed[name] = rng.choice(names)
            case 1:
                listed[str(rng.choice(names))] = rng.choice([listed[name], rng.choice(names)])
            case 2 if len(listed) > 1:
                del listed[name]
            case 3:
                other = rng.choice(list(listed))
                listed[name], listed[other] = listed[other], listed[name]
            case _:
                tree[rng.choice(["weight_map", "metadata", "more"])] = rng.choice(names)
                break
    return dumped(tree, rng)


def shuffled(content: bytes, rng: Random, upto: int) -> bytes:
    a, b = sorted(rng.randrange(upto) for _ in range(2))
    at = rng.randrange(upto)
    return content[:at] + content[a:b] + content[at:]


@pytest.mark.parametrize("n", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_indexes_are_refused_or_load_the_stored_tensors(bait: Path, n: int) -> None:
    file = bait / INDEX
    whole = file.read_bytes()
    loaded = 0
    for seed in range(n):
        rng = Random(seed)
        mutation = rng.choice([flipped, cut, shuffled, edited, edited])
        file.write_bytes(mutation(whole, rng, len(whole)))
        with opened_files() as opened:
            try:
                found = Weights.open(bait)
            except InputError as error:
                message = str(error)
            else:
                same(found, {name: TENSORS[name] for name in found})
                message = str(bait)
                loaded += 1
        assert str(bait) in message
        assert len(message) < 1000
        assert within(opened, bait)
    assert n // 100 < loaded < n // 2, "some are harmless, or list fewer shards"
