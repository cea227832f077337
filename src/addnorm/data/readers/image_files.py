"""Image files with a class or a text each, such as PNG and JPEG, of one size or their own."""

import struct
import warnings
from io import BytesIO
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import UInt8
from pydantic import PositiveInt
from torch import Tensor

from addnorm.config import config
from addnorm.data.examples import Example, Image
from addnorm.data.readers.labelled_files import LabelledFiles, Readable
from addnorm.errors import InputError, optional

LARGEST = 2**26
"""The most pixels of a picture: a file of a few bytes may unpack to any number of them."""

DAMAGED = (
    OSError, EOFError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError,
    struct.error,
)  # fmt: skip
"""What Pillow raises for a damaged file, as its bytes were changed at random."""

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""What Pillow calls pictures of so many channels."""


@config
class ImageFilesConfig(LabelledFiles):
    """Image files with a class or text each (PNG, JPEG, WebP, …), of one `image_size` or not.

    A picture is turned upright as its EXIF data say, converted to grey or colours (what is
    transparent shows white), scaled until it fills the size, and cut at the middle (bicubic, with
    antialiasing). With `image_size = "own"` it keeps its size, but for what is cut off around the
    middle for sides of a `size_multiple`. One of several frames is refused.
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
        if self.image_size == "own" and self.strings is not None:
            raise ValueError(
                "strings stand in pictures of one size: give image_size its height and width"
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
    file: Readable,
    where: str,
    size: tuple[int, int] | None,
    channels: int,
    *,
    transparent: Literal["white", "dropped"] = "white",
) -> UInt8[Tensor, "channels height width"]:
    """Read a picture, upright, at a size (height, width) or its own, with so many channels.

    What is transparent shows white, or the colour that stands in the file.

    Raises `InputError`, beginning with `where`, for a file that is damaged, truncated or no
    picture, for one of several frames, and for one of more than `LARGEST` pixels.
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
    """Why an opened picture is not read, before it is unpacked."""
    width, height = picture.size
    if width * height > LARGEST:
        return f"has {width:,} × {height:,} pixels, more than {LARGEST:,}: make it smaller"
    if picture.mode == "F" or (picture.mode == "I" and picture.format != "PPM"):
        return "has values of 32 bits, of which black and white are unknown: save it with 8 or 16"
    n_frames = getattr(picture, "n_frames", 1)
    if n_frames > 1 and picture.format != "MPO":  # a camera's, with previews after the picture
        return f"has {n_frames} frames: save the one that is meant as a picture"
    return None


def _converted(picture: Any, mode: str, transparent: str) -> Any:
    """The picture in another of Pillow's modes: 16 bits to 8, and on white if transparent."""
    from PIL import Image as pillow

    if picture.mode == "I" or picture.mode.startswith("I;16"):  # Pillow would cut off at 255
        wide = np.asarray(picture).astype(np.int64)
        picture = pillow.fromarray(((wide + 128) // 257).astype(np.uint8))
    if picture.has_transparency_data and mode != "RGBA" and transparent == "white":
        seen = picture.convert("RGBA")
        picture = pillow.alpha_composite(pillow.new("RGBA", seen.size, "white"), seen)
        picture = picture.convert("RGB")
    return picture.convert(mode)


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
