"""A table of wrong files: each is named, and counted where damaged files are left out."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image as pillow

from addnorm.data import AudioConfig, ImageFilesConfig
from addnorm.errors import InputError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (16, 24, 3), np.uint8)
CLIP = RNG.normal(0, 0.1, 4000)


def picture(kind: str = "PNG", **options: Any) -> bytes:
    out = BytesIO()
    pillow.fromarray(PIXELS).save(out, kind, **options)
    return out.getvalue()


def sound(samples: Any = CLIP, rate: int = 8000, **options: Any) -> bytes:
    out = BytesIO()
    soundfile.write(out, samples, rate, **{"format": "WAV", **options})
    return out.getvalue()


def frames(kind: str) -> bytes:
    others = [pillow.fromarray(PIXELS // n) for n in (2, 3)]
    return picture(kind, save_all=True, append_images=others)


def floats() -> bytes:
    out = BytesIO()
    pillow.fromarray(np.float32([[0.1, 0.9]])).save(out, "TIFF")
    return out.getvalue()


WRONG_PICTURES: Mapping[str, tuple[bytes, str]] = {
    "empty.png": (b"", "not readable as a picture: of no known kind"),
    "text.png": (b"<svg/>", "not readable as a picture: of no known kind"),
    "sound.png": (sound(), "not readable as a picture: of no known kind"),
    "cut.png": (picture()[:400], "not readable as a picture"),
    "cut.jpg": (picture("JPEG")[:-60], "not readable as a picture: image file is truncated"),
    "cut.webp": (picture("WEBP")[:200], "not readable as a picture"),
    "cut.gif": (picture("GIF")[:200], "not readable as a picture"),
    "moving.gif": (frames("GIF"), "has 3 frames"),
    "moving.webp": (frames("WEBP"), "has 3 frames"),
    "pages.tif": (frames("TIFF"), "has 3 frames"),
    "floats.tif": (floats(), "has values of 32 bits"),
}
WRONG_CLIPS: Mapping[str, tuple[bytes, str]] = {
    "empty.wav": (b"", "not readable as sound"),
    "text.wav": (b"RIFF or not, these are words and no sound", "not readable as sound"),
    "picture.wav": (picture(), "not readable as sound"),
    "wide.wav": ("the cat".encode("utf-16"), "not readable as sound: of no known kind"),
    "cut.wav": (sound()[:-50], "truncated: 3,975 samples, 50 bytes are missing"),
    "cut24.wav": (sound(subtype="PCM_24")[:-50], "truncated: .* 50 bytes are missing"),
    "cut.flac": (sound(format="FLAC")[:-500], "not readable as sound|truncated"),
    "cut.ogg": (sound(format="OGG")[:-500], "not readable as sound|truncated"),
    "cut.aiff": (sound(format="AIFF")[:-50], "truncated: .* 50 bytes are missing"),
    "none.wav": (sound(CLIP[:0]), "empty or truncated: 0 samples"),
    "short.wav": (sound(CLIP[:90]), "90 samples is too short: .* at least 101"),
    "two.wav": (sound(np.stack([CLIP, CLIP], 1)), "has 2 channels: .*'averaged'"),
    "nan.wav": (sound(CLIP * np.nan, subtype="FLOAT"), "NaN or infinite"),
    "loud.wav": (sound(CLIP * 1e30, subtype="FLOAT"), "too loud"),
}
RIGHT_PICTURES: Mapping[str, bytes] = {
    "jpeg.png": picture("JPEG"),  # of another kind than its name says: what is in it counts
    "one.gif": picture("GIF"),
    "upper.PNG": picture(),
    "camera.jpg": frames("MPO"),
}
RIGHT_CLIPS: Mapping[str, bytes] = {
    "flac.wav": sound(format="FLAC"),
    "deep.wav": sound(subtype="PCM_24"),
    "float.wav": sound(subtype="FLOAT"),
    "fast.wav": sound(rate=44_100),
    "upper.WAV": sound(),
    "piped.wav": sound()[:40] + b"\xff\xff\xff\xff" + sound()[44:],
}


def pictures(root: Path, **options: Any) -> ImageFilesConfig:
    return ImageFilesConfig(root=root, train="files", image_size=(4, 4), **options)


def clips(root: Path, **options: Any) -> AudioConfig:
    return AudioConfig(root=root, train="files", sample_rate=8000, n_mels=20, **options)


Config = Callable[..., Any]
WRONG = [(pictures, name, *both) for name, both in WRONG_PICTURES.items()]
WRONG_SOUND = [(clips, name, *both) for name, both in WRONG_CLIPS.items()]


def write(root: Path, name: str, content: bytes, good: bytes) -> Path:
    """A good file of one class, and another of a second one."""
    file = root / "files" / "b" / name
    for path, data in ((root / "files" / "a" / f"good{file.suffix}", good), (file, content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return file


@pytest.mark.parametrize(
    ("config", "name", "content", "message"),
    [*WRONG, *WRONG_SOUND],
    ids=lambda value: value if isinstance(value, str) and "." in value[-6:] else "",
)
def test_it_is_named_or_counted(
    config: Config, name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    file = write(tmp_path, name, content, picture() if config is pictures else sound())
    with pytest.raises(InputError, match=message) as caught:
        config(tmp_path).load()
    assert str(caught.value).startswith(str(file))
    report = config(tmp_path, damaged="leave_out").load().reports["train"]
    assert (report.read, report.used) == (2, 1)
    [(reason, where)] = report.left_out.items()
    assert where == [str(file)]
    assert not reason.startswith(str(file))


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("config", [pictures, clips])
def test_in_a_table_it_is_named_by_its_line(config: Config, kind: str, tmp_path: Path) -> None:
    good = picture() if config is pictures else sound()
    contents = {"good": good, "cut": good[:300], "fine": good}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    rows = [(name, "x") for name in (*contents, "missing")]
    mark = "," if kind == ".csv" else "\t"
    lines = [mark.join(row) for row in [("file_name", "label"), *rows]]
    if kind == ".jsonl":
        lines = [json.dumps({"file_name": name, "label": label}) for name, label in rows]
    table = tmp_path / f"table{kind}"
    table.write_text("".join(f"{line}\n" for line in lines))
    cut = 2 if kind == ".jsonl" else 3

    def read(**options: str) -> Any:
        return replace(config(tmp_path), train=table.name, **options).load()

    with pytest.raises(InputError, match=rf"^{table}:{cut} is "):
        read()
    report = read(damaged="leave_out").reports["train"]
    assert (report.read, report.used) == (4, 2)
    named = [where for some in report.left_out.values() for where in some]
    assert named == [f"{table}:{cut}", f"{table}:{cut + 2}"]
    (tmp_path / "cut").write_bytes(good)
    with pytest.raises(InputError, match=rf"^{table}:{cut + 2}: .*missing does not exist"):
        read()


@pytest.mark.parametrize("name", RIGHT_PICTURES)
def test_unusual_pictures_are_read(name: str, tmp_path: Path) -> None:
    write(tmp_path, name, RIGHT_PICTURES[name], picture())
    assert len(pictures(tmp_path).load().train) == 2


@pytest.mark.parametrize("name", RIGHT_CLIPS)
def test_unusual_clips_are_read(name: str, tmp_path: Path) -> None:
    write(tmp_path, name, RIGHT_CLIPS[name], sound())
    assert len(clips(tmp_path).load().train) == 2


# What lies among the files.


def test_files_without_an_example_are_counted(tmp_path: Path) -> None:
    write(tmp_path, "1.png", picture(), picture())
    folder = tmp_path / "files"
    others = {
        "a/.DS_Store": "hidden",
        "a/._1.png": "hidden",
        "b/.checkpoints/1.png": "hidden",
        "b/photo.heic": "of another kind (.heic)",
        "b/notes.txt": "of another kind (.txt)",
        "README": "of another kind (no suffix)",
    }
    for name in others:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    (folder / "b" / "1.txt").write_text("the text of 1.png")
    (folder / "b" / "folder.png").mkdir()
    report = pictures(tmp_path).load().reports["train"]
    assert (report.read, report.used) == (8, 2)
    counted = {where: reason for reason, some in report.left_out.items() for where in some}
    assert counted == {str(folder / name): reason for name, reason in others.items()}


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path, "1.png", picture(), picture())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "2.png").write_bytes(picture())
    (tmp_path / "files" / "c").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "circle").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "files" / "b" / "link.png").symlink_to(tmp_path / "elsewhere" / "2.png")
    corpus = pictures(tmp_path).load()
    assert corpus.labels == ("a", "b", "c")
    assert len(corpus.train) == 4


def test_pipes_and_links_to_nothing_are_named_or_counted(tmp_path: Path) -> None:
    write(tmp_path, "1.png", picture(), picture())
    os.mkfifo(tmp_path / "files" / "a" / "pipe.png")
    (tmp_path / "files" / "b" / "lost.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(InputError, match=r"pipe\.png is not a file but a pipe"):
        pictures(tmp_path).load()
    with pytest.raises(InputError, match=r"pipe\.png is not a file"):
        ImageFilesConfig(root=tmp_path, train="files/*/*", image_size=(4, 4)).load()
    report = pictures(tmp_path, damaged="leave_out").load().reports["train"]
    assert (report.read, report.used) == (4, 2)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, "1.png", picture(), picture())
    (tmp_path / "files" / "b" / "1.png").chmod(0)
    with pytest.raises(InputError, match=r"1\.png is not readable as a picture: .*denied"):
        pictures(tmp_path).load()
    (tmp_path / "files" / "b").chmod(0)
    with pytest.raises(InputError, match=r"files/b cannot be read: .*denied"):
        pictures(tmp_path).load()
    (tmp_path / "files" / "b").chmod(0o755)


@pytest.mark.parametrize("folder", ["brackets [1]", "what?", "with spaces", "Füße 猫"])
def test_names_of_folders_and_classes(folder: str, tmp_path: Path) -> None:
    for label in ("big cat", "a[b]", "Füße 猫"):
        file = tmp_path / folder / label / "1.png"
        file.parent.mkdir(parents=True)
        file.write_bytes(picture())
    corpus = ImageFilesConfig(root=tmp_path, train=folder, image_size=(4, 4)).load()
    assert corpus.labels == ("Füße 猫", "a[b]", "big cat")
    (tmp_path / f"{folder}.csv").write_text(f"file_name,label\n{folder}/big cat/1.png,x\n")
    table = ImageFilesConfig(root=tmp_path, train=f"{folder}.csv", image_size=(4, 4)).load()
    assert table.labels == ("x",)


def test_a_name_that_is_too_long_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"file_name,label\n{'x' * 5000}.png,a\n")
    with pytest.raises(InputError, match=r"t\.csv:2: .*xxx does not exist"):
        ImageFilesConfig(root=tmp_path, train="t.csv", image_size=(4, 4)).load()


@pytest.mark.parametrize("label", ['["x"]', '{"a": 1}'])
def test_a_label_that_is_not_a_word_is_named(label: str, tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(picture())
    row = '{"file_name": "1.png", "label": '
    (tmp_path / "t.jsonl").write_text(f"{row}NaN}}\n{row}{label}}}\n")
    with pytest.raises(InputError, match=r"t\.jsonl:2: expected a class, which is"):
        ImageFilesConfig(root=tmp_path, train="t.jsonl", image_size=(4, 4)).load()
    (tmp_path / "t.jsonl").write_text(f"{row}NaN}}\n{row}7}}\n")
    corpus = ImageFilesConfig(root=tmp_path, train="t.jsonl", image_size=(4, 4)).load()
    assert corpus.reports["train"].left_out == {"no label": [f"{tmp_path / 't.jsonl'}:1"]}
    assert corpus.labels == ("7",)
