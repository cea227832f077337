"""Image files: their pixels are Pillow's, upright and of one size; bad ones are named."""

import struct
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image as pillow

from addnorm.data.readers.images import ImageFilesConfig, read_image
from addnorm.errors import InputError

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (6, 8, 3), np.uint8)


def written(path: Path, pixels: np.ndarray, **options: object) -> Path:
    pillow.fromarray(pixels).save(path, **options)
    return path


def test_pixels_are_those_that_were_written(tmp_path: Path) -> None:
    path = written(tmp_path / "a.png", COLOURS)
    assert torch.equal(read_image(path, "a", (6, 8), 3), torch.from_numpy(COLOURS).movedim(-1, 0))
    grey = written(tmp_path / "b.png", COLOURS[..., 0])
    assert torch.equal(read_image(grey, "b", (6, 8), 1)[0], torch.from_numpy(COLOURS[..., 0]))
    assert read_image(grey, "b", (6, 8), 3).shape == (3, 6, 8)


def test_bytes_are_read_like_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "a.png", COLOURS)
    content = BytesIO(path.read_bytes())
    assert torch.equal(read_image(content, "a", (6, 8), 3), read_image(path, "a", (6, 8), 3))


def test_another_size_fills_the_frame_and_is_cut_at_the_middle(tmp_path: Path) -> None:
    pixels = np.zeros((8, 24), np.uint8)
    pixels[:, 8:16] = 200
    path = written(tmp_path / "wide.png", pixels)
    found = read_image(path, "wide", (4, 4), 1)
    assert found.shape == (1, 4, 4)
    assert int(found[0, 1:3, 1:3].min()) > 190


def test_it_is_turned_upright(tmp_path: Path) -> None:
    exif = pillow.Exif()
    exif[0x0112] = (
        6  # taken with the camera turned: the first row of the sensor is the right column
    )
    path = written(tmp_path / "turned.png", COLOURS, exif=exif)
    expected = torch.from_numpy(np.rot90(COLOURS, -1).copy()).movedim(-1, 0)
    assert torch.equal(read_image(path, "turned", (8, 6), 3), expected)


@pytest.mark.parametrize("kept", [0, 7, 20, 60])
def test_a_truncated_file_is_named(kept: int, tmp_path: Path) -> None:
    path = written(tmp_path / "a.png", COLOURS)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="a is not readable as a picture"):
        read_image(path, "a", (6, 8), 3)


def test_a_bomb_is_refused_unread(tmp_path: Path) -> None:
    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 9_000, 9_000, 8, 0, 0, 0, 0))
    path = tmp_path / "bomb.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(10))))
    with pytest.raises(InputError, match=r"^bomb has 9,000 × 9,000 pixels, more than"):
        read_image(path, "bomb", (4, 4), 1)
    larger = chunk(b"IHDR", struct.pack(">IIBBBBB", 90_000, 90_000, 8, 0, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + larger + chunk(b"IDAT", zlib.compress(bytes(10))))
    with pytest.raises(InputError, match=r"^bomb has more than 67,108,864 pixels"):
        read_image(path, "bomb", (4, 4), 1)


def test_a_picture_may_keep_its_size_but_for_its_edges(tmp_path: Path) -> None:
    path = written(tmp_path / "a.png", COLOURS)  # 6 × 8
    whole = torch.from_numpy(COLOURS).movedim(-1, 0)
    own = ImageFilesConfig(train="x", image_size="own")
    assert torch.equal(own.read(path, "a"), whole)
    cut = ImageFilesConfig(train="x", image_size="own", size_multiple=5)
    assert torch.equal(cut.read(path, "a"), whole[:, 0:5, 1:6])
    with pytest.raises(InputError, match=r"a has 6 × 8 pixels: .* data.size_multiple = 7"):
        ImageFilesConfig(train="x", image_size="own", size_multiple=7).read(path, "a")
    with pytest.raises(InputError, match='size_multiple = 4 is for image_size = "own"'):
        ImageFilesConfig(train="x", image_size=(4, 4), size_multiple=4)


# What Pillow holds in other ways than 8 bits of grey or colours.

RAMP = np.arange(0, 65_536, 65_535 // 15).reshape(4, 4)
"""Greys of 16 bits from black to white."""


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_16_bits_keep_their_scale(name: str, channels: int, tmp_path: Path) -> None:
    """Pillow by itself makes all that is above 255 white."""
    path = written(tmp_path / name, RAMP.astype(np.uint16))
    found = read_image(path, name, None, channels)
    expected = torch.from_numpy(RAMP / 257).round().to(torch.uint8).expand(channels, 4, 4)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_32_bits_are_refused(kind: type, tmp_path: Path) -> None:
    path = written(tmp_path / "a.tif", RAMP.astype(kind))
    with pytest.raises(InputError, match=r"^a has values of 32 bits, of which black and white"):
        read_image(path, "a", None, 3)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize("channels", [1, 3])
def test_transparent_pixels_are_white(mode: str, channels: int, tmp_path: Path) -> None:
    """Black on nothing, whose hidden colour is black too."""
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[1, 1] = (0, 0, 0, 255)
    pixels[2, 2] = (0, 0, 0, 51)  # a fifth
    picture = pillow.fromarray(pixels)
    if mode == "P":
        picture = pillow.fromarray(np.where(pixels[..., 3] == 255, 1, 0).astype(np.uint8), "P")
        picture.putpalette([0, 0, 0] * 256)
        picture.save(tmp_path / "a.png", transparency=0)
    else:
        picture.convert(mode).save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png", "a", None, channels)
    expected = torch.full((channels, 4, 4), 255, dtype=torch.uint8)
    expected[:, 1, 1] = 0
    if mode != "P":
        expected[:, 2, 2] = 204
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.tif"])
def test_several_frames_are_refused(name: str, tmp_path: Path) -> None:
    first, *others = (pillow.fromarray(np.full((4, 4, 3), n, np.uint8)) for n in (10, 90, 200))
    first.save(tmp_path / name, save_all=True, append_images=others)
    with pytest.raises(InputError, match=r"^a has 3 frames: save the one"):
        read_image(tmp_path / name, "a", None, 3)
    first.save(tmp_path / "camera.jpg", "MPO", save_all=True, append_images=others)
    assert int(read_image(tmp_path / "camera.jpg", "a", None, 3).max()) == 10


def test_other_modes_are_as_pillow_converts_them(tmp_path: Path) -> None:
    cmyk = pillow.fromarray(RNG.integers(0, 256, (4, 4, 4), np.uint8), "CMYK")
    for picture in (cmyk, pillow.fromarray(COLOURS).quantize(16), pillow.new("1", (4, 4), 1)):
        picture.save(tmp_path / "a.tif")
        expected = torch.from_numpy(np.array(picture.convert("RGB"))).movedim(-1, 0)
        assert torch.equal(read_image(tmp_path / "a.tif", "a", None, 3), expected)


def test_an_array_of_two_channels_has_no_picture(tmp_path: Path) -> None:
    path = written(tmp_path / "a.png", COLOURS)
    with pytest.raises(InputError, match="a: no picture has 2 values a pixel"):
        read_image(path, "a", (6, 8), 2)


@pytest.mark.parametrize("name", ["e.jpg", "e.png", "e.webp", "e.tif", "e.gif", "e.bmp"])
def test_bytes_changed_at_random_are_read_or_named(name: str) -> None:
    """Whatever Pillow raises or warns of, the file is named."""
    exif = pillow.Exif()
    exif[0x0112] = 6
    first, second = (pillow.fromarray(COLOURS + n) for n in (0, 1))
    more = {"save_all": True, "append_images": [second]} if name == "e.gif" else {"exif": exif}
    out = BytesIO()
    first.save(out, {"jpg": "JPEG", "tif": "TIFF"}.get(name[2:], name[2:].upper()), **more)
    rng = Random(name)
    for _ in range(150):
        changed = bytearray(out.getvalue())
        for _ in range(rng.choice((1, 2, 5))):
            at = rng.randrange(min(len(changed), rng.choice((60, 10_000))))
            if rng.random() < 0.5:
                changed[at] = rng.randrange(256)
            else:
                del changed[at : at + rng.randrange(1, 20)]
        with suppress(InputError):
            assert read_image(BytesIO(bytes(changed)), "where", (8, 8), 3).shape == (3, 8, 8)
