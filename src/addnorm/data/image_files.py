"""Image files with a class or a text each, such as PNG and JPEG, of one size or their own."""

from io import BytesIO
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import UInt8
from pydantic import PositiveInt
from torch import Tensor

from addnorm.config import config
from addnorm.data.examples import Example, Image
from addnorm.data.labelled_files import LabelledFiles, Readable
from addnorm.errors import InputError

LARGEST = 2**26
"""The most pixels of a picture: a file of a few bytes may unpack to any number of them."""

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""What Pillow calls pictures of so many channels."""


@config
class ImageFilesConfig(LabelledFiles):
    """Image files with a class or text each (PNG, JPEG, WebP, …), of one `image_size` or not.

    A picture is turned upright as its EXIF data say, converted to grey or colours, scaled until it
    fills the size, and cut at the middle (bicubic, with antialiasing). With `image_size = "own"` it
    keeps its size, but for what is cut off around the middle for sides of a `size_multiple`.
    """

    suffixes: ClassVar[tuple[str, ...]] = (
        ".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
    )  # fmt: skip
    column: ClassVar[str] = "image"

    kind: Literal["image_files"] = "image_files"
    image_size: tuple[PositiveInt, PositiveInt] | Literal["own"]
    """Height and width, in pixels, that every picture is brought to, or "own" for each its own."""
    size_multiple: PositiveInt = 1
    """With `image_size = "own"`, what every side is cut to a multiple of, such as a patch's."""
    channels: Literal[1, 3] = 3
    """Values of a pixel: 3 for colours, 1 for grey."""

    def __post_init__(self) -> None:
        if self.image_size != "own" and self.size_multiple != 1:
            raise ValueError(
                f'size_multiple = {self.size_multiple} is for image_size = "own": leave it out'
            )

    def examples(self, file: Readable, where: str, label: str, *, train: bool) -> list[Example]:
        """Read a picture."""
        return [Image(self.read(file, where), label)]

    def read(self, file: Readable, where: str) -> UInt8[Tensor, "channels height width"]:
        """The pixels of a picture."""
        if self.image_size != "own":
            return read_image(file, where, self.image_size, self.channels)
        return cut_to_multiple(
            read_image(file, where, None, self.channels), self.size_multiple, where
        )


def read_image(
    file: Readable, where: str, size: tuple[int, int] | None, channels: int
) -> UInt8[Tensor, "channels height width"]:
    """Read a picture, upright, at a size (height, width) or its own, with so many channels.

    Raises `InputError`, beginning with `where`, for a file that is damaged, truncated or no
    picture, and for one of more than `LARGEST` pixels.
    """
    try:
        from PIL import Image as pillow
        from PIL import ImageOps
    except ImportError as error:
        raise InputError('image files need: pip install "addnorm[images]"') from error
    try:
        with pillow.open(file if isinstance(file, BytesIO) else str(file)) as picture:
            if picture.width * picture.height > LARGEST:
                raise InputError(
                    f"{where} has {picture.width:,} × {picture.height:,} pixels, more than "
                    f"{LARGEST:,} in all: make it smaller first"
                )
            upright = ImageOps.exif_transpose(picture)
            converted = upright.convert(MODES[channels])
    except (OSError, SyntaxError, ValueError, EOFError, pillow.DecompressionBombError) as error:
        raise InputError(f"{where} is not readable as a picture: {_short(error)}") from error
    if size is not None and converted.size != (size[1], size[0]):
        converted = ImageOps.fit(converted, (size[1], size[0]), pillow.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(converted, np.uint8))
    return pixels[None] if channels == 1 else pixels.movedim(-1, 0).contiguous()


def cut_to_multiple(
    pixels: UInt8[Tensor, "channels height width"], multiple: int, where: str
) -> UInt8[Tensor, "channels rows columns"]:
    """The middle of a picture, its sides multiples of a number.

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
    """Pillow names the object of a file without a name."""
    return "of no known kind" if "cannot identify" in str(error) else str(error)
