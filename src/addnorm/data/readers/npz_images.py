"""Images in .npz files: two arrays for each split, the images and their classes."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor
from torch.nn import functional as F

from addnorm.config import Probability, config
from addnorm.data.examples import Corpus, Image
from addnorm.data.readers.rows import Row, assemble
from addnorm.data.readers.strings import StringsConfig
from addnorm.data.readers.text_files import find, given
from addnorm.errors import InputError, choices

Array = NDArray[Any]
Pixels = UInt8[Tensor, "images channels height width"]


@config
class ImagesConfig:
    """Classification of images in an .npz file: integers from 0, black, to 255, white.

    `train`, `valid` and `test` name two arrays: the images, `n × height × width`, with
    `× channels` where they have colours, and their classes, `n` numbers from 0. `pool` comes before
    `permute_seed`.
    """

    kind: Literal["images"] = "images"
    root: Path | None = None
    """The folder where a relative `file` starts; by default $ADDNORM_DATA, else the current
    folder.
    """
    file: Path
    """The .npz file with the arrays of every split."""
    train: tuple[str, str] = ("x_train", "y_train")
    """The arrays to learn from: the images and their classes."""
    valid: tuple[str, str] | None = None
    """The arrays to validate on while training."""
    test: tuple[str, str] | None = ("x_test", "y_test")
    """The arrays that training never sees."""
    valid_fraction: Probability = 0.0
    """The share of train, drawn at random, that is held out for validation."""
    seed: int = 0
    """The seed of the random images that `valid_fraction` holds out."""
    pool: PositiveInt = 1
    """The side, in pixels, of the squares that are averaged to one pixel; 1 leaves images as
    they are.
    """
    permute_seed: int | None = None
    """Shuffle the pixels of all images in the same way, by this seed."""

    strings: StringsConfig | None = None
    """Make strings of images, whose classes are the text to write; by default every image is an
    example.
    """

    def load(self) -> Corpus:
        """Read and check every array. Raises `InputError` with the location of the first error."""
        full = find(self.file, self.root)
        names = given(self.train, self.valid, self.test)
        arrays = read_arrays(full, [name for both in names.values() for name in both])
        images = {split: images_in(full, x, arrays[x]) for split, (x, _) in names.items()}
        sizes = {tuple(pixels.shape[1:]) for pixels in images.values()}
        if len(sizes) > 1:
            found = " and ".join(" × ".join(map(str, size)) for size in sorted(sizes))
            raise InputError(f"{full}: the images of the splits differ in size: {found}")
        rows = {
            split: rows_of(f"{full}: {x}", self.arranged(images[split]), f"{full}: {y}", arrays[y])
            for split, (x, y) in names.items()
        }
        corpus = assemble(rows, valid_fraction=self.valid_fraction, seed=self.seed)
        return corpus if self.strings is None else self.strings.corpus(corpus)

    def arranged(self, images: Pixels) -> UInt8[Tensor, "images channels rows columns"]:
        """Pool the images, and permute their pixels if `permute_seed` is set."""
        height, width = images.shape[-2:]
        if height % self.pool or width % self.pool:
            sides = [n for n in range(1, height + 1) if height % n == width % n == 0]
            raise InputError(
                f"data.pool = {self.pool} does not divide images of {height} × {width}: "
                f"it must be one of {sides}"
            )
        if self.pool > 1:  # in parts: float32 takes four times the memory
            some = (F.avg_pool2d(part.float(), self.pool) for part in images.split(4096))
            images = torch.cat([part.round().to(torch.uint8) for part in some])
        if self.permute_seed is None:
            return images
        n = images.shape[-2] * images.shape[-1]
        order = Random(f"permute {self.permute_seed}").sample(range(n), n)
        return images.flatten(2)[:, :, order].view_as(images)


def read_arrays(path: Path, names: Sequence[str]) -> Mapping[str, Array]:
    """Read arrays by name. Raises `InputError` for a damaged file or a missing name."""
    try:
        with zipfile.ZipFile(path) as file:
            known = [member.removesuffix(".npy") for member in file.namelist()]
            missing = [name for name in names if name not in known]
            if not missing:
                return {name: _array(file, name) for name in names}
    except (ValueError, OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not an .npz file, or is damaged: {error}") from error
    except MemoryError as error:
        raise InputError(f"{path}: its arrays do not fit into memory") from error
    raise InputError(f"{path}: no array {missing[0]!r}.{choices(missing[0], known)}")


def _array(file: zipfile.ZipFile, name: str) -> Array:
    # np.load would return other members as bytes, and not verify the checksum.
    with file.open(f"{name}.npy") as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
        member.read()
        return array


def images_in(path: Path, name: str, array: Array) -> Pixels:
    """Convert an array to images, channels first. Raises `InputError` for other arrays."""
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or not array.size:
        raise InputError(
            f"{path}: {name} holds {array.dtype} of shape {array.shape}: images are integers "
            "of 8 bits (uint8), n × height × width or n × height × width × channels"
        )
    images = torch.from_numpy(np.ascontiguousarray(array))
    return images[:, None] if images.ndim == 3 else images.movedim(-1, 1).contiguous()


def rows_of(place: str, images: Pixels, labels_place: str, labels: Array) -> Iterator[Row]:
    """Yield an example for each image. Raises `InputError` unless each has exactly one class."""
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise InputError(
            f"{labels_place} holds {labels.dtype} of shape {labels.shape}: "
            f"{place} needs {len(images):,} classes, integers"
        )
    for i, (pixels, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        if label < 0:
            raise InputError(f"{labels_place}[{i}] = {label}: classes are numbers from 0")
        yield Row(f"{labels_place}[{i}]", Image(pixels, str(label)))
