"""Images with a class or a text: in files such as PNG and JPEG, or in arrays of an .npz file."""

import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor
from torch.nn import functional as F

from addnorm.config import Probability, config
from addnorm.data.examples import Corpus, Example, Image
from addnorm.data.readers.labelled_files import LabelledFiles, Readable
from addnorm.data.readers.rows import Row, assemble
from addnorm.data.readers.strings import StringsConfig
from addnorm.data.readers.text_files import find, given
from addnorm.errors import InputError, choices, optional

LARGEST = 2**26
"""The most pixels of a picture: a file of a few bytes may unpack to any number of them."""

DAMAGED = (
    OSError, EOFError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError,
    struct.error,
)  # fmt: skip
"""The errors that Pillow raises for damaged files, found by changing bytes at random."""

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's name for pictures of each number of channels."""


@config
class ImageFilesConfig(LabelledFiles):
    """Image files with a class or text each (PNG, JPEG, WebP, …), of one `image_size` or not.

    A picture is turned upright by its EXIF data, converted to grey or colours (transparent parts
    become white), scaled until it fills the size, and cropped at the centre (bicubic, with
    antialiasing). With `image_size = "own"` it keeps its size, except for a crop at the centre to
    sides that are multiples of `size_multiple`. A picture of several frames is refused.
    """

    suffixes: ClassVar[tuple[str, ...]] = (
        ".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
    )  # fmt: skip
    column: ClassVar[str] = "image"

    kind: Literal["image_files"] = "image_files"
    image_size: tuple[PositiveInt, PositiveInt] | Literal["own"]
    """Height and width, in pixels, that every picture is brought to, or "own" for each its own."""
    size_multiple: PositiveInt = 1
    """With `image_size = "own"`, the number of which every side is cut to a multiple, such as a
    patch's.
    """
    channels: Literal[1, 3] = 3
    """Values of a pixel: 3 for colours, 1 for grey."""

    def __post_init__(self) -> None:
        if self.image_size != "own" and self.size_multiple != 1:
            raise ValueError(
                f'size_multiple = {self.size_multiple} is for image_size = "own": leave it out'
            )
        if self.image_size == "own" and self.strings is not None:
            raise ValueError(
                "strings need images of one size: give image_size its height and width"
            )

    def examples(self, file: Readable, where: str, label: str, *, train: bool) -> list[Example]:
        """Read a picture."""
        return [Image(self.read(file, where), label)]

    def read(self, file: Readable, where: str) -> UInt8[Tensor, "channels height width"]:
        """Return the pixels of a picture."""
        if self.image_size != "own":
            return read_image(file, where, self.image_size, self.channels)
        return cut_to_multiple(
            read_image(file, where, None, self.channels), self.size_multiple, where
        )


def read_image(
    file: Readable,
    where: str,
    size: tuple[int, int] | None,
    channels: int,
    *,
    transparent: Literal["white", "dropped"] = "white",
) -> UInt8[Tensor, "channels height width"]:
    """Read a picture upright, with this many channels, at a given size (height, width) or its own.

    Transparent pixels are white, or keep their colour in the file where transparency is dropped.

    Raises `InputError`, beginning with `where`, for a file that is damaged, truncated or not a
    picture, that has several frames, or more than `LARGEST` pixels.
    """
    optional("PIL", "images", "an image file")
    from PIL import Image as pillow
    from PIL import ImageOps

    if channels not in MODES:
        raise InputError(f"{where}: no picture has {channels} values a pixel, as the model reads")
    try:
        # Pillow warns of damaged descriptions, and of sizes that are checked here.
        with (
            warnings.catch_warnings(action="ignore"),
            pillow.open(file if isinstance(file, BytesIO) else str(file)) as picture,
        ):
            problem = _problem(picture)
            upright = picture if problem else ImageOps.exif_transpose(picture)
            converted = upright if problem else _converted(upright, MODES[channels], transparent)
    except pillow.DecompressionBombError as error:
        raise InputError(f"{where} has more than {LARGEST:,} pixels: make it smaller") from error
    except DAMAGED as error:
        raise InputError(f"{where} is not readable as a picture: {_short(error)}") from error
    if problem:
        raise InputError(f"{where} {problem}")
    if size is not None and converted.size != (size[1], size[0]):
        converted = ImageOps.fit(converted, (size[1], size[0]), pillow.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(converted, np.uint8))
    return pixels[None] if channels == 1 else pixels.movedim(-1, 0).contiguous()


def _problem(picture: Any) -> str | None:
    """Return why an opened picture is refused, before it is decoded; None if it is accepted."""
    width, height = picture.size
    if width * height > LARGEST:
        return f"has {width:,} × {height:,} pixels, more than {LARGEST:,}: make it smaller"
    if picture.mode == "F" or (picture.mode == "I" and picture.format != "PPM"):
        return "has values of 32 bits, of which black and white are unknown: save it with 8 or 16"
    n_frames = getattr(picture, "n_frames", 1)
    if n_frames > 1 and picture.format != "MPO":  # from a camera, with previews after the picture
        return f"has {n_frames} frames: save the one that is meant as a picture"
    return None


def _converted(picture: Any, mode: str, transparent: str) -> Any:
    """Convert a picture to a supported mode: 16 bits to 8, transparency to white."""
    from PIL import Image as pillow

    if picture.mode == "I" or picture.mode.startswith("I;16"):  # Pillow would cut off at 255
        wide = np.asarray(picture).astype(np.int64)
        picture = pillow.fromarray(((wide + 128) // 257).astype(np.uint8))
    if picture.has_transparency_data and mode != "RGBA" and transparent == "white":
        layers = picture.convert("RGBA")
        picture = pillow.alpha_composite(pillow.new("RGBA", layers.size, "white"), layers)
        picture = picture.convert("RGB")
    return picture.convert(mode)


def cut_to_multiple(
    pixels: UInt8[Tensor, "channels height width"], multiple: int, where: str
) -> UInt8[Tensor, "channels rows columns"]:
    """Return the centre of a picture, cut to sides that are multiples of a number.

    Raises `InputError`, beginning with `where`, if a side is smaller than that number.
    """
    height, width = pixels.shape[1:]
    rows, columns = (side // multiple * multiple for side in (height, width))
    if not rows or not columns:
        raise InputError(
            f"{where} has {height} × {width} pixels: each side needs data.size_multiple = "
            f"{multiple} at least"
        )
    top, left = (height - rows) // 2, (width - columns) // 2
    return pixels[:, top : top + rows, left : left + columns].contiguous()


def _short(error: Exception) -> str:
    """Return Pillow's error message without its name for a file in memory."""
    return "of no known kind" if "cannot identify" in str(error) else str(error)


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
        arrays = read_arrays(full, [name for pair in names.values() for name in pair])
        images = {split: images_in(full, x, arrays[x]) for split, (x, _) in names.items()}
        sizes = {tuple(pixels.shape[1:]) for pixels in images.values()}
        if len(sizes) > 1:
            each = " and ".join(" × ".join(map(str, size)) for size in sorted(sizes))
            raise InputError(f"{full}: the images of the splits differ in size: {each}")
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
            means = (F.avg_pool2d(part.float(), self.pool) for part in images.split(4096))
            images = torch.cat([mean.round().to(torch.uint8) for mean in means])
        order = self.pixel_order(images.shape[-2] * images.shape[-1])
        return images if order is None else images.flatten(2)[:, :, order].view_as(images)

    def pixel_order(self, n: int) -> list[int] | None:
        """The source position of each of an image's `n` pixels, if they are permuted."""
        if self.permute_seed is None:
            return None
        return Random(f"permute {self.permute_seed}").sample(range(n), n)


def read_arrays(path: Path, names: Sequence[str]) -> Mapping[str, Array]:
    """Read named arrays from an .npz file.

    Raises `InputError` for a damaged file or a missing name.
    """
    try:
        with zipfile.ZipFile(path) as file:
            present = [member.removesuffix(".npy") for member in file.namelist()]
            missing = [name for name in names if name not in present]
            if not missing:
                return {name: _array(file, name) for name in names}
    except (ValueError, OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not an .npz file, or is damaged: {error}") from error
    except MemoryError as error:
        raise InputError(f"{path}: its arrays do not fit into memory") from error
    raise InputError(f"{path}: no array {missing[0]!r}.{choices(missing[0], present)}")


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
