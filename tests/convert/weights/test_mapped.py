"""Weight files are memory-mapped, private, and never run a pickle."""

import os
import zipfile
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import pytest
import torch
from tests.convert.folders import Evil, Tree, entry, packed, raw, same
from torch import Tensor, nn

from addnorm.convert.weights.header import DTYPES
from addnorm.convert.weights.mapped import StoredTensor, map_pickle, map_safetensors
from addnorm.errors import InputError


def read(stored: dict[str, StoredTensor]) -> dict[str, Tensor]:
    for one in stored.values():
        tensor = one.read()
        assert one.shape == tuple(tensor.shape)
        assert one.dtype == tensor.dtype
        assert one.nbytes == tensor.nbytes
    return {name: one.read() for name, one in stored.items()}


def write(file: Path, header: Tree, data: bytes) -> dict[str, StoredTensor]:
    file.write_bytes(packed(header, data))
    return map_safetensors(file)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(tmp_path: Path, name: str) -> None:
    size = 6 * DTYPES[name].itemsize
    data = Random(0).randbytes(size) if name != "BOOL" else b"\0\1\1\0\0\1"
    header = {"a": entry(name, [2, 3], 0, size), "none": entry(name, [3, 0], size, size)}
    found = read(write(tmp_path / "x", header, data))
    assert found["a"].dtype == DTYPES[name]
    assert raw(found["a"]) == data
    assert found["none"].shape == (3, 0)


@pytest.mark.parametrize("pad", range(8))
def test_elements_are_aligned_wherever_they_lie(tmp_path: Path, pad: int) -> None:
    numbers = torch.randn(5, dtype=torch.float64)
    header = {"pad": entry("U8", [pad], 0, pad), "a": entry("F64", [5], pad, pad + 40)}
    found = read(write(tmp_path / "x", header, bytes(pad) + raw(numbers)))
    assert found["a"].equal(numbers)
    assert found["a"].data_ptr() % 8 == 0


def test_tensors_are_views_that_outlive_the_rest(tmp_path: Path) -> None:
    header = {"a": entry("F32", [1000], 0, 4000), "b": entry("F32", [], 4000, 4004)}
    stored = write(tmp_path / "x", header, raw(torch.randn(1001)))
    one, again, other = stored["a"].read(), stored["a"].read(), stored["b"].read()
    assert one.data_ptr() == again.data_ptr()
    assert other.data_ptr() == one.data_ptr() + 4000
    values = one.clone()
    (tmp_path / "x").unlink()
    del stored, again, other
    assert one.equal(values)


def test_writing_into_a_tensor_never_changes_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x"
    header = {"a": entry("I64", [9], 0, 72), "b": entry("I64", [], 72, 80)}
    stored = write(file, header, bytes(80))
    content = file.read_bytes()
    stored["a"].read().fill_(7)
    stored["b"].read().fill_(7)
    assert stored["a"].read().tolist() == [7] * 9
    assert file.read_bytes() == content
    assert map_safetensors(file)["a"].read().tolist() == [0] * 9


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="x: cannot be read: No such file"):
        map_safetensors(tmp_path / "x")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        map_safetensors(tmp_path)


def resident(kind: str = "VmRSS") -> int:
    """Bytes of this process in memory: all, or only what no file backs (`RssAnon`)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return 1024 * int(line.split()[1])
    raise AssertionError(kind)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("size", [2**26, pytest.param(2**30, marks=pytest.mark.slow)])
def test_loading_is_quick_and_takes_no_memory_of_its_own(tmp_path: Path, size: int) -> None:
    file = tmp_path / "x"
    each = size // 64
    header = {f"w{i}": entry("F32", [each // 4], i * each, (i + 1) * each) for i in range(64)}
    file.write_bytes(packed(header))
    with file.open("ab") as stream:
        for _ in range(64):
            stream.write(os.urandom(each))
    before, private = resident(), resident("RssAnon")
    seconds: list[float] = []
    for _ in range(3):
        start = perf_counter()
        tensors = [one.read() for one in map_safetensors(file).values()]
        opened = resident()
        most = max(int(tensor.view(torch.int32).max()) for tensor in tensors)
        seconds.append(perf_counter() - start)
        assert most
        assert opened - before < 2**22, "nothing is read before it is touched"
        assert resident("RssAnon") - private < 2**22, "nothing is copied"
        assert resident() - before < 1.15 * size
        del tensors
    assert min(seconds) < 2 * size / 2**30 + 0.2


# Pickles


def save(file: Path, content: Any, **settings: Any) -> Path:
    torch.save(content, file, **settings)
    return file


def test_a_pickle_of_tensors(tmp_path: Path) -> None:
    shared = torch.randn(4)
    content = {
        "a": torch.randn(3, 5),
        "turned": torch.randn(3, 5).T,
        "half": torch.randn(3).bfloat16(),
        "parameter": nn.Parameter(torch.randn(2)),
        "scalar": torch.tensor(3),
        "none": torch.zeros(0, 4),
        "tied": shared,
        "tied too": shared,
    }
    file = save(tmp_path / "x.bin", content)
    found = read(map_pickle(file))
    same(found, content)
    assert type(found["parameter"]) is Tensor
    assert not found["parameter"].requires_grad
    before = file.read_bytes()
    found["a"].fill_(0)
    assert file.read_bytes() == before


def unlike(folder: Path) -> dict[str, Any]:
    """What a pickle may hold that is no dictionary of plain tensors."""
    return {
        "evil": {"w": torch.ones(1), "x": Evil(folder / "canary")},
        "evil alone": Evil(folder / "canary"),
        "module": nn.Linear(1, 1),
        "list": [torch.ones(1)],
        "tensor": torch.ones(1),
        "number": {"step": 3},
        "nested": {"state_dict": {"w": torch.ones(1)}},
        "unnamed": {3: torch.ones(1)},
        "sparse": {"w": torch.eye(3).to_sparse()},
        "meta": {"w": torch.ones(3, device="meta")},
    }


@pytest.mark.parametrize("what", unlike(Path()))
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_anything_else_is_refused_and_not_run(
    tmp_path: Path, what: str, zipped: bool
) -> None:
    content = unlike(tmp_path)[what]
    file = save(tmp_path / "x.bin", content, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"x\.bin") as caught:
        map_pickle(file)
    assert "weights_only" not in str(caught.value), "torch's advice is to run it"
    assert not (tmp_path / "canary").exists()


def test_a_packed_pickle_is_refused(tmp_path: Path) -> None:
    """It may unfold to any size."""
    plain, packed_file = save(tmp_path / "x.bin", {"w": torch.zeros(9)}), tmp_path / "y.bin"
    with (
        zipfile.ZipFile(plain) as old,
        zipfile.ZipFile(packed_file, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
    with pytest.raises(InputError, match=r"y\.bin: .*compressed"):
        map_pickle(packed_file)


def test_a_damaged_pickle_is_refused_or_loads(tmp_path: Path) -> None:
    file = save(tmp_path / "x.bin", {"w": torch.arange(300.0), "b": torch.ones(3)})
    whole, rng = file.read_bytes(), Random(0)
    loaded, messages = 0, set[str]()
    for _ in range(300):
        place = rng.randrange(len(whole))
        changed = bytearray(whole)
        changed[place] ^= 1 << rng.randrange(8)
        file.write_bytes(changed if rng.random() < 0.5 else whole[:place])
        try:
            read(map_pickle(file))
            loaded += 1
        except InputError as error:
            messages.add(str(error).split(": ")[0])
    assert 0 < loaded < 300
    assert messages == {str(file)}
