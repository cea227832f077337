"""Pieces in several files are read as the whole; torch's own reader reads them too."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed import checkpoint

from addnorm.errors import InputError
from addnorm.training.stored import SavedTensor, StoredTensors, write_saved

SHAPES = st.lists(st.integers(1, 7), min_size=1, max_size=3)


def cut(whole: Tensor, data: st.DataObject) -> list[SavedTensor]:
    """The pieces of a tensor between random places on each axis."""
    pieces = [(whole, (0,) * whole.ndim)]
    for axis, n in enumerate(whole.shape):
        places = sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=2))) if n > 1 else []
        bounds = [*zip([0, *places], [*places, n], strict=True)]
        pieces = [
            (tensor.narrow(axis, first, last - first), (*start[:axis], first, *start[axis + 1 :]))
            for tensor, start in pieces
            for first, last in bounds
        ]
    return [SavedTensor(tensor, start) for tensor, start in pieces]


def written(folder: Path, pieces: list[SavedTensor]) -> list[Path]:
    files = [folder / f"w-{i}.safetensors" for i in range(len(pieces))]
    for file, piece in zip(files, pieces, strict=True):
        write_saved(file, {"w": piece})
    return files


@given(SHAPES, st.data())
def test_pieces_are_read_as_the_whole(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], data: st.DataObject
) -> None:
    whole = torch.randn(shape)
    files = written(tmp_path_factory.mktemp("w"), cut(whole, data))
    assert torch.equal(StoredTensors(data.draw(st.permutations(files)))["w"], whole)


def test_a_missing_piece_is_named(tmp_path: Path) -> None:
    whole = torch.randn(6, 4)
    pieces = [SavedTensor(whole[:2], (0, 0)), SavedTensor(whole[4:], (4, 0))]
    with pytest.raises(InputError, match="a piece of w is missing"):
        StoredTensors(written(tmp_path, pieces))["w"]
    with pytest.raises(InputError, match="a piece of w is missing"):
        StoredTensors(written(tmp_path, pieces[1:]))["w"]


def test_whole_tensors_are_read_as_they_are(tmp_path: Path) -> None:
    tensors = {"a": torch.tensor(3), "b": torch.randn(2, 3).bfloat16(), "c": torch.empty(0, 2)}
    file = tmp_path / "model.safetensors"
    write_saved(file, {name: SavedTensor(tensor) for name, tensor in tensors.items()})
    stored = StoredTensors([file])
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors.items())


@pytest.mark.filterwarnings("ignore")  # that it reads in one process
def test_torch_reads_the_same_files(tmp_path: Path) -> None:
    whole = torch.randn(5, 4)
    written(tmp_path, [SavedTensor(whole[:, :3], (0, 0)), SavedTensor(whole[:, 3:], (0, 3))])
    read = {"w": torch.empty(5, 4)}
    checkpoint.load(
        read, storage_reader=checkpoint.HuggingFaceStorageReader(str(tmp_path)), no_dist=True
    )
    assert torch.equal(read["w"], whole)
