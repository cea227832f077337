"""Images in datasets of Hugging Face on disk: read, learnt from, classified, refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runs.tiny import quiet

from addnorm.data import Corpus, DatasetConfig, Image, medium_of
from addnorm.errors import InputError
from addnorm.runs.inference.media import classify_files
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import train_run

datasets: Any = pytest.importorskip("datasets")
pillow: Any = pytest.importorskip("PIL.Image")

NAMES = ["dark", "light"]


def pixels(i: int) -> Any:
    """Noise that is dark where the number is even, and light where it is odd."""
    rng = np.random.default_rng(i)
    return (rng.integers(0, 60, (8, 6, 3)) + 180 * (i % 2)).astype(np.uint8)


def saved(folder: Path, **changes: list[Any]) -> str:
    columns = {
        "image": [pillow.fromarray(pixels(i)) for i in range(20)],
        "label": [i % 2 for i in range(20)],
        **changes,
    }
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=NAMES))
    dataset = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict(train=dataset, test=dataset.select(range(4))).save_to_disk(
        folder / "saved"
    )
    return str(folder / "saved")


def load(path: str, **changes: Any) -> Corpus:
    size = {"image_size": (8, 6), **changes}
    return DatasetConfig(path=path, image="image", label="label", test="test", **size).load()


def test_images_are_read_with_their_classes(tmp_path: Path) -> None:
    corpus = load(saved(tmp_path))
    assert (corpus.medium, corpus.task, corpus.labels) == ("images", "classification", tuple(NAMES))
    assert (len(corpus.train), len(corpus.test)) == (20, 4)
    for i, one in enumerate(corpus.train):
        assert isinstance(one, Image)
        assert one.label == NAMES[i % 2]
        assert torch.equal(one.pixels, torch.from_numpy(pixels(i)).movedim(-1, 0))


def test_images_are_brought_to_a_size_and_to_grey(tmp_path: Path) -> None:
    [first, *_] = load(saved(tmp_path), image_size=(4, 5), channels=1).train
    assert isinstance(first, Image)
    assert first.pixels.shape == (1, 4, 5)


def test_rows_without_an_image_or_a_class_are_counted(tmp_path: Path) -> None:
    pictures = [None, *(pillow.fromarray(pixels(i)) for i in range(1, 20))]
    path = saved(tmp_path, image=pictures, label=[0, -1, *(i % 2 for i in range(2, 20))])
    report = load(path).reports["train"]
    assert (report.read, report.used) == (20, 18)
    assert report.left_out == {
        "empty image": [f"{path}, train row 1"],
        "empty label": [f"{path}, train row 2"],
    }


def test_bytes_in_a_column_of_any_name(tmp_path: Path) -> None:
    file = tmp_path / "one.png"
    pillow.fromarray(pixels(0)).save(file)
    columns = {"picture": [file.read_bytes()] * 3, "kind": ["a", "b", "a"]}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "raw")
    config = DatasetConfig(
        path=str(tmp_path / "raw"), image="picture", label="kind", image_size=(8, 6)
    )
    assert [one.label for one in config.load().train] == ["a", "b", "a"]  # type: ignore[union-attr]
    assert medium_of(config) == "images"


@pytest.mark.parametrize("cell", [b"no picture", "nowhere.png"])
def test_a_cell_without_an_image_is_refused_with_its_row(cell: Any, tmp_path: Path) -> None:
    columns = {"image": [cell] * 2, "label": ["a", "b"]}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "raw")
    with pytest.raises(InputError, match="train row 1") as caught:
        DatasetConfig(
            path=str(tmp_path / "raw"), image="image", label="label", image_size=(8, 6)
        ).load()
    assert "\n" not in str(caught.value)


def test_columns_that_do_not_go_together() -> None:
    with pytest.raises(InputError, match="image_size, the height and width"):
        DatasetConfig(path="x", image="image", label="label")
    with pytest.raises(InputError, match="image, the column of the images"):
        DatasetConfig(path="x", text="text", label="label", image_size=(8, 8))
    with pytest.raises(InputError, match="label and image"):
        DatasetConfig(path="x", image="image", image_size=(8, 8))
    with pytest.raises(InputError, match="channels is for images"):
        DatasetConfig(path="x", text="text", label="label", channels=1)
    with pytest.raises(InputError, match="lowercase is for texts: leave out either it or image"):
        DatasetConfig(path="x", image="i", label="label", image_size=(8, 8), lowercase=True)


def test_a_model_learns_from_them_and_classifies_a_file(tmp_path: Path) -> None:
    recipe = tmp_path / "light.toml"
    recipe.write_text(f"""
[data]
kind = "dataset"
path = "{saved(tmp_path)}"
image = "image"
label = "label"
image_size = [8, 6]
test = "test"

[model]
kind = "encoder"
d_model = 16
n_layers = 1
input = {{ kind = "convolutions", size = [8, 6], widths = [4] }}
attention = {{ n_heads = 2 }}
feedforward = {{ kind = "mlp", d_ff = 16 }}
head = {{ kind = "classification" }}

[train]
steps = 20
batching = {{ kind = "examples", size = 10, augment = ["flip"] }}
lr = 1e-2
""")
    run = train_run(read_recipe(recipe, {}), tmp_path / "run", resume=False, console=quiet())
    file = tmp_path / "new.png"
    pillow.fromarray(pixels(101)).save(file)
    [(_, found)] = classify_files(Run.open(run.folder), [file])
    assert found.label == "light"
