"""Image files: their pixels are Pillow's, upright and of one size; bad ones are named."""

import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as pillow

from addnorm.data.image_files import ImageFilesConfig, read_image
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
    with pytest.raises(InputError, match=r"9,000 × 9,000 pixels, more than"):
        read_image(path, "bomb", (4, 4), 1)
    larger = chunk(b"IHDR", struct.pack(">IIBBBBB", 90_000, 90_000, 8, 0, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + larger + chunk(b"IDAT", zlib.compress(bytes(10))))
    with pytest.raises(InputError, match="bomb is not readable as a picture"):
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
