"""Safetensors headers are never trusted: hand-made cases and thousands of mutations."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.convert.damage import NASTY, cut, dumped, flipped
from tests.convert.folders import Tree, entry, opened_files, packed, same

from addnorm.convert.weights import header as module
from addnorm.convert.weights.files import Weights
from addnorm.convert.weights.header import DTYPES, parse_object, read_header
from addnorm.errors import InputError

GOOD = {"a": entry("F32", [2, 3], 0, 24), "b": entry("I64", [], 24, 32)}
DATA = bytes(range(32))
HUGE = 2**63


def refused(folder: Path, content: bytes) -> str:
    file = folder / "x.safetensors"
    file.write_bytes(content)
    with file.open("rb") as stream, pytest.raises(InputError) as caught:
        read_header(stream, file)
    assert str(file) in str(caught.value)
    return str(caught.value)


def test_a_good_header(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    header = {"__metadata__": {"format": "pt"}, **GOOD, "none": entry("BF16", [0, 5], 32, 32)}
    file.write_bytes(packed(header, DATA))
    with file.open("rb") as stream:
        found = read_header(stream, file)
    start = file.stat().st_size - 32
    assert list(found) == ["a", "b", "none"]
    assert found["a"] == module.Entry(torch.float32, (2, 3), start, start + 24)
    assert found["b"] == module.Entry(torch.int64, (), start + 24, start + 32)
    assert found["none"] == module.Entry(torch.bfloat16, (0, 5), start + 32, start + 32)


def test_every_dtype_has_the_size_that_its_name_says() -> None:
    bits = {
        name: int("".join(c for c in name.split("_")[0] if c.isdigit()) or 8) for name in DTYPES
    }
    assert {name: 8 * dtype.itemsize for name, dtype in DTYPES.items()} == bits


def test_truncated_anywhere_is_said_with_both_sizes(tmp_path: Path) -> None:
    whole = packed(GOOD, DATA)
    for size in range(len(whole)):
        message = refused(tmp_path, whole[:size])
        assert "truncated" in message
        assert f"has {size}" in message
        assert size < 8 or "expected" in message
        if size >= len(whole) - len(DATA):
            assert f"expected {len(whole)} bytes, has {size}" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"\xff" * 20, "a header of 18446744073709551615 bytes, at most 32000000"),
        ((32_000_001).to_bytes(8, "little") + b"{}", "a header of 32000001 bytes"),
        (packed(b""), "expected a JSON object, got b''"),
        (packed(b" {}"), "expected a JSON object"),
        (packed(b"[]"), "expected a JSON object"),
        (packed(b"{}x"), "damaged: Extra data"),
        (packed(b'{"a":1,"a":1}'), "'a' is there twice"),
        (packed(b'{"a":{"b":1,"b":1}}'), "'b' is there twice"),
        (packed(b'{"__metadata__":{},"__metadata__":{}}'), "'__metadata__' is there twice"),
        (packed(b'{"a":NaN}'), "NaN is not JSON"),
        (packed(b'{"a":-Infinity}'), "-Infinity is not JSON"),
        (packed(b'{"\\ud800":1}'), "surrogates not allowed"),
        (packed(b'{"a":"\\udc00"}'), "surrogates not allowed"),
        (packed(b'{"\xff":1}'), "can't decode byte 0xff"),
        (packed(b'{"a":' + b"[" * 100_000), "damaged: "),
        (packed(b'{"a":' + b"9" * 5000 + b"}"), "digits"),
        (packed(b'{"a":[' + b"{}," * 1_000_000 + b"0]}"), "more in it than 200000 tensors"),
        (packed({"__metadata__": {"a": 1}}), "__metadata__ is not of text alone"),
        (packed({"__metadata__": []}), "__metadata__ is not of text alone"),
        (packed(GOOD, DATA + b"!"), "its tensors end at byte"),
        (packed({}, b"!"), "its tensors end at byte 16, but it has 17"),
    ],
)
def test_what_is_wrong_with_the_whole_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refused(tmp_path, content)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "F33"}, "unknown dtype 'F33'. Did you mean 'F3"),
        ({"dtype": "F4"}, "unknown dtype 'F4'"),
        ({"dtype": 32}, "no dtype"),
        ({"dtype": None}, "no dtype"),
        ({"more": 1}, "unknown fields: ['more']"),
        ({"shape": 6}, "no dtype, shape"),
        ({"shape": {}}, "no dtype, shape"),
        ({"shape": [2, 4]}, "F32 of shape [2, 4] takes 32 bytes, its data_offsets [0, 24] span 24"),
        ({"shape": []}, "takes 4 bytes"),
        ({"shape": [0, 3]}, "takes 0 bytes"),
        ({"shape": [-2, -3]}, "a shape is"),
        ({"shape": [2.0, 3]}, "a shape is"),
        ({"shape": [True, 6]}, "a shape is"),
        ({"shape": ["2", 3]}, "a shape is"),
        ({"shape": [None]}, "a shape is"),
        ({"shape": [HUGE]}, "a shape is"),
        ({"shape": [1] * 65}, "a shape is 64 sizes at most"),
        ({"shape": [HUGE // 2, 4]}, "is too large"),
        ({"shape": [2**62, 2**62, 0], "data_offsets": [0, 0]}, "is too large"),
        ({"data_offsets": [0]}, "two data_offsets"),
        ({"data_offsets": [0, 24, 24]}, "two data_offsets"),
        ({"data_offsets": "24"}, "two data_offsets"),
        ({"data_offsets": [24, 0]}, "not a span"),
        ({"data_offsets": [-24, 0]}, "not a span"),
        ({"data_offsets": [0.0, 24.0]}, "not a span"),
        ({"data_offsets": [False, 24]}, "not a span"),
        ({"data_offsets": [HUGE, HUGE + 24]}, "not a span"),
        ({"data_offsets": [4, 28]}, "follows 4 unused: it begins at byte"),
        ({"shape": [1], "data_offsets": [24, 28]}, "follows 24 unused"),
    ],
)
def test_what_is_wrong_with_a_tensor_is_said(tmp_path: Path, changes: Tree, message: str) -> None:
    text = refused(tmp_path, packed({**GOOD, "a": {**GOOD["a"], **changes}}, DATA))
    assert message in text
    assert "tensor 'a'" in text


def test_overlaps_and_holes_are_refused(tmp_path: Path) -> None:
    twice = {"a": entry("U8", [32], 0, 32), "b": entry("U8", [4], 8, 12)}
    assert "tensor 'b' overlaps another" in refused(tmp_path, packed(twice, DATA))
    equal = {"a": entry("U8", [32], 0, 32), "b": entry("U8", [32], 0, 32)}
    assert "overlaps another" in refused(tmp_path, packed(equal, DATA))
    inside = {"a": entry("U8", [32], 0, 32), "b": entry("U8", [0], 8, 8)}
    assert "overlaps another" in refused(tmp_path, packed(inside, DATA))
    hole = {"a": entry("U8", [8], 0, 8), "b": entry("U8", [16], 16, 32)}
    assert "tensor 'b' follows 8 unused" in refused(tmp_path, packed(hole, DATA))
    beyond = {"a": entry("U8", [32], 0, 32), "b": entry("U8", [0], 99, 99)}
    assert "truncated" in refused(tmp_path, packed(beyond, DATA))


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, {"dtype": "F32"}])
def test_a_tensor_that_is_no_entry_is_refused(tmp_path: Path, value: Any) -> None:
    assert "tensor 'a': no dtype" in refused(tmp_path, packed({"a": value}))


def test_too_many_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TENSORS", 3)
    parse_object(b'{"a":1,"b":1,"c":1}', tmp_path)
    with pytest.raises(InputError, match="4 names in one object, at most 3"):
        parse_object(b'{"a":1,"b":1,"c":1,"d":1}', tmp_path)


def test_a_long_name_is_not_repeated_in_full(tmp_path: Path) -> None:
    assert len(refused(tmp_path, packed({"x" * 10**6: {"y" * 10**6: 1}}))) < 500


def test_control_characters_of_a_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    assert "\x1b" not in refused(tmp_path, packed({"\x1b[2J": 1}))


def stretched(content: bytes, rng: Random, upto: int) -> bytes:
    length = rng.choice([0, 1, upto - 9, upto - 7, 10**8 + 1, 2**32, 2**63, 2**64 - 1])
    return length.to_bytes(8, "little") + content[8:]


def shuffled(content: bytes, rng: Random, upto: int) -> bytes:
    """A part of the header in the place of another."""
    a, b = sorted(rng.randrange(8, upto) for _ in range(2))
    at = rng.randrange(8, upto)
    text = content[8:at] + content[a:b] + content[at:upto]
    return packed(text, content[upto:])


def edited(content: bytes, rng: Random, upto: int) -> bytes:
    tree = json.loads(content[8:upto])
    for _ in range(rng.randrange(1, 3)):
        edit(tree, rng)
    return packed(dumped(tree, rng), content[upto:])


def edit(tree: Tree, rng: Random) -> None:
    name = rng.choice(list(tree))
    inner = tree[name]
    match rng.randrange(6):
        case 0:
            tree[name] = rng.choice(NASTY)
        case 1:
            tree[str(rng.choice(NASTY))] = tree.pop(name)
        case 2:
            tree[f"{name}2"] = tree[name]
        case 3 if isinstance(inner, dict) and inner:
            del inner[rng.choice(list(inner))]
        case 4 if isinstance(inner, dict) and inner:
            inner[rng.choice(list(inner))] = rng.choice(NASTY)
        case _ if isinstance(inner, dict):
            field = inner.get(rng.choice(["shape", "data_offsets"]))
            if isinstance(field, list) and field:
                numbers = [*NASTY, *(number + rng.randrange(-9, 9) for number in (0, 8, 24, 32))]
                field[rng.randrange(len(field))] = rng.choice(numbers)


MUTATIONS: list[Callable[[bytes, Random, int], bytes]] = [flipped, cut, stretched, shuffled, edited]


def mutate_headers(folder: Path, n: int) -> tuple[int, int]:
    """Open `n` damaged files; how many of them loaded, and how many were refused."""
    header = {"__metadata__": {"format": "pt"}, **GOOD, "c": entry("BOOL", [0], 32, 32)}
    whole = packed(header, DATA)
    upto = len(whole) - len(DATA)
    file = folder / "model.safetensors"
    loaded = 0
    for seed in range(n):
        rng = Random(seed)
        mutation = rng.choice([*MUTATIONS, edited, edited])
        file.write_bytes(mutation(whole, rng, upto))
        try:
            with opened_files() as opened:
                weights = Weights.open(folder)
        except InputError as error:
            message = str(error)
        else:
            same(weights, load_file(file))
            message = str(file)
            loaded += 1
        assert str(file) in message
        assert len(message) < 1000 + len(str(file))
        assert set(opened) <= {str(file)}
    return loaded, n - loaded


@pytest.mark.parametrize("n", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_headers_are_refused_or_mean_what_they_say(tmp_path: Path, n: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loaded, not_loaded = mutate_headers(tmp_path, n)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert loaded > n // 100, "some mutations are harmless"
    assert not_loaded > n // 2
    assert grown < 100 * 1024, f"{grown} KiB"


def test_any_stream_of_bytes_ends_in_an_input_error(tmp_path: Path) -> None:
    rng = Random(0)
    for _ in range(200):
        refused(tmp_path, rng.randbytes(rng.randrange(100)))
        refused(tmp_path, packed(rng.randbytes(rng.randrange(100))))
