"""Saving weights: shared memory refused, stale files removed, never a mixture on failure."""

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.convert.folders import (
    INDEX,
    TENSORS,
    contents,
    in_shards,
    refused,
    same,
)
from torch import Tensor

from addnorm import atomic
from addnorm.convert.weights import files as module
from addnorm.convert.weights.files import Weights, save_folder_weights

# Memory that two names share


@pytest.mark.parametrize(
    "views",
    [
        lambda x: {"a": x, "b": x},
        lambda x: {"a": x, "b": x.T},
        lambda x: {"a": x.T, "b": x.T},
        lambda x: {"a": x[:4], "b": x[3:]},
        lambda x: {"a": x, "b": x[3, 3]},
        lambda x: {"a": x[3:4], "b": x.view(torch.int16), "c": torch.ones(3)},
        lambda x: {"a": x[0, 0].expand(9), "b": x[0, :1]},
        lambda x: {"a": x[:, ::2], "b": x[:, ::3]},
    ],
)
def test_two_names_of_one_memory_are_refused(
    tmp_path: Path, views: Callable[[Tensor], dict[str, Tensor]]
) -> None:
    with pytest.raises(ValueError, match=r"'[ab]' and '[ab]' share memory"):
        save_folder_weights(tmp_path / "new", views(torch.randn(6, 6)))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "views",
    [
        lambda x: dict(zip("qkv", x.chunk(3), strict=True)),
        lambda x: dict(zip("qkv", x.view(2, 3, 6).unbind(1), strict=True)),
        lambda x: dict(zip("qkv", x.chunk(3, dim=1), strict=True)),
        lambda x: {"a": x, "none": x[:0], "none too": x[:0]},
        lambda x: {"a": x, "b": x.clone()},
    ],
)
def test_disjoint_parts_of_one_memory_are_saved(
    tmp_path: Path, views: Callable[[Tensor], dict[str, Tensor]]
) -> None:
    tensors = views(torch.randn(6, 6))
    save_folder_weights(tmp_path, tensors)
    same(Weights.open(tmp_path), tensors)


# Saves over earlier ones, and saves that fail

SAVES = {"one": 10**9, "two": 24, "four": 0}
OLD = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}


def save(folder: Path, tensors: Mapping[str, Tensor], how: str) -> None:
    save_folder_weights(folder, tensors, max_shard_bytes=SAVES[how])


@pytest.mark.parametrize("old", SAVES)
@pytest.mark.parametrize("new", SAVES)
def test_what_an_earlier_save_left_goes_and_the_rest_stays(
    tmp_path: Path, old: str, new: str
) -> None:
    others = ["config.json", "pytorch_model.bin", "model-best.safetensors", "model.safetensors.md"]
    save(tmp_path / "fresh", TENSORS, new)
    folder = tmp_path / "again"
    save(folder, OLD, old)
    for name in others:
        (folder / name).write_text("mine")
    (folder / ".partial" / "deep").mkdir(parents=True)  # a crash left it
    save(folder, TENSORS, new)
    assert {k: v for k, v in contents(folder).items() if k not in others} == contents(
        tmp_path / "fresh"
    )
    assert all((folder / name).read_text() == "mine" for name in others)
    same(Weights.open(folder), TENSORS)


class Fails:
    """Does as `do`, but for call number `at`."""

    def __init__(self, do: Callable[..., Any], at: int) -> None:
        self.do, self.left = do, at

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == -1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.do(*args, **kwargs)


CALLS = [
    (os, "fsync"),
    (os, "replace"),
    (os, "unlink"),
    (Path, "write_text"),
    (module, "write_tensors"),
]


@pytest.mark.parametrize(("home", "call"), CALLS, ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.parametrize("old", SAVES)
@pytest.mark.parametrize("new", SAVES)
def test_a_save_that_fails_leaves_the_old_or_the_new_and_never_a_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Any, call: str, old: str, new: str
) -> None:
    for at in range(20):
        save(tmp_path, OLD, old)
        fault = Fails(getattr(home, call), at)
        with monkeypatch.context() as patch:
            patch.setattr(home, call, lambda *args, fault=fault, **kw: fault(*args, **kw))
            try:
                save(tmp_path, TENSORS, new)
            except OSError:
                pass
            else:
                assert fault.left >= 0, "a fault is said"
                no_call = (call, new) == ("write_text", "one") or (call, old, new) == (
                    "unlink",
                    "one",
                    "one",
                )
                assert at or no_call, "there was one"
                break
        assert not (tmp_path / ".partial").exists()
        if (tmp_path / INDEX).exists() or (tmp_path / "model.safetensors").exists():
            found = Weights.open(tmp_path)
            same(found, OLD if found["c"] == 0 else TENSORS)
        else:
            assert old == new, "only shards of the same names lose their index"
            refused(tmp_path, "is its index missing?")
    else:
        pytest.fail("it never went well")


def test_everything_is_on_disk_before_it_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace, unlink = atomic._sync, Path.replace, Path.unlink
    in_shards(tmp_path)
    monkeypatch.setattr(atomic, "_sync", lambda p: (done.append(f"sync {p.name}"), sync(p)))
    monkeypatch.setattr(
        Path, "replace", lambda p, to: (done.append(f"place {to.name}"), replace(p, to))[1]
    )
    monkeypatch.setattr(
        Path, "unlink", lambda p, **how: (done.append(f"remove {p.name}"), unlink(p, **how))[1]
    )
    save(tmp_path, TENSORS, "two")
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert done[:7] == [
        *(f"sync {name}" for name in (first, second, INDEX)),
        *(f"place {name}" for name in (first, second, INDEX)),
        f"sync {tmp_path.name}",
    ]
    assert all(step.startswith("remove model") for step in done[7:])
    assert len(done) == 7 + 4
