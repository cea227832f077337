"""Images: valid .npz files, errors for damaged ones, and resumable batches."""

import io
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from addnorm.data import Captioned, Corpus, Image, ImagesConfig, Labelled
from addnorm.data.batches.augmentation import CutMixConfig, FlipConfig, MixupConfig
from addnorm.data.batches.buckets import ExamplesConfig, PackedConfig, TokensConfig, WindowsConfig
from addnorm.data.batches.images import Images, moved
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import CharConfig
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode

RNG = np.random.default_rng(0)


def arrays(n: int = 12, shape: tuple[int, ...] = (6, 8)) -> dict[str, Any]:
    return {
        "x_train": RNG.integers(0, 256, (n, *shape), np.uint8),
        "y_train": np.arange(n) % 3,
        "x_test": RNG.integers(0, 256, (4, *shape), np.uint8),
        "y_test": np.arange(4) % 3,
    }


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "images.npz"
    np.savez_compressed(path, **{**arrays(), **changes})
    return path


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        ImagesConfig(file=path, **options).load()
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value) or "data.pool" in str(caught.value)
    return str(caught.value)


def pixels(examples: Any) -> Tensor:
    return torch.stack([example.pixels for example in examples])


# Reading.


def test_npz_images_round_trip(tmp_path: Path) -> None:
    held = arrays()
    corpus = ImagesConfig(file=write(tmp_path, **held)).load()
    assert corpus.task == "classification"
    assert corpus.labels == ("0", "1", "2")
    assert torch.equal(pixels(corpus.train)[:, 0], torch.from_numpy(held["x_train"]))
    assert [one.label for one in corpus.test] == ["0", "1", "2", "0"]  # type: ignore[union-attr]
    assert (len(corpus.valid), str(corpus.reports["train"])) == (0, "12 read, 12 used")


def test_colours_come_first(tmp_path: Path) -> None:
    held = arrays(shape=(6, 8, 3))
    corpus = ImagesConfig(file=write(tmp_path, **held)).load()
    expected = torch.from_numpy(held["x_train"]).permute(0, 3, 1, 2)
    assert torch.equal(pixels(corpus.train), expected)


def test_arrays_of_other_names_and_a_root(tmp_path: Path) -> None:
    write(tmp_path, images=arrays()["x_test"], classes=np.array([2, 1, 0, 0], np.uint8))
    config = ImagesConfig(
        file=Path("images.npz"), root=tmp_path, valid=("images", "classes"), test=None
    )
    corpus = config.load()
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (12, 4, 0)
    assert [one.label for one in corpus.valid] == ["2", "1", "0", "0"]  # type: ignore[union-attr]


def test_a_share_is_held_out_and_the_rest_stays(tmp_path: Path) -> None:
    path = write(tmp_path)
    whole = ImagesConfig(file=path).load()
    corpus = ImagesConfig(file=path, valid_fraction=0.25).load()
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (9, 3, 4)
    both = [one.pixels.tolist() for one in (*corpus.train, *corpus.valid)]  # type: ignore[union-attr]
    assert sorted(both) == sorted(pixels(whole.train).tolist())
    again = ImagesConfig(file=path, valid_fraction=0.25).load()
    assert torch.equal(pixels(again.valid), pixels(corpus.valid))
    assert "either valid or valid_fraction" in refusal_of(
        ImagesConfig(file=path, valid=("x_test", "y_test"), valid_fraction=0.1)
    )


def refusal_of(config: ImagesConfig) -> str:
    with pytest.raises(InputError) as caught:
        config.load()
    return str(caught.value)


def test_pooling_is_the_mean_of_squares(tmp_path: Path) -> None:
    held = arrays()
    corpus = ImagesConfig(file=write(tmp_path, **held), pool=2).load()
    squares = held["x_train"].reshape(12, 3, 2, 4, 2).astype(float).mean((2, 4))
    assert np.array_equal(pixels(corpus.train)[:, 0].numpy(), np.round(squares))
    assert "must be one of [1, 2]" in refusal(write(tmp_path), pool=4)


def test_pixels_are_permuted_alike_everywhere(tmp_path: Path) -> None:
    held = arrays(shape=(6, 8, 3))
    config = ImagesConfig(file=write(tmp_path, **held), permute_seed=1)
    corpus = config.load()
    before = torch.from_numpy(held["x_train"]).permute(0, 3, 1, 2).flatten(2)
    after = pixels(corpus.train).flatten(2)
    found = (before[:, :, :, None] == after[:, :, None]).all(0).all(0).nonzero()
    assert found[:, 0].tolist() == list(range(48)), "every pixel has one new place"
    order = found[:, 1].argsort()
    assert order.tolist() != list(range(48))
    test = torch.from_numpy(held["x_test"]).permute(0, 3, 1, 2).flatten(2)
    assert torch.equal(pixels(corpus.test).flatten(2), test[:, :, order])
    other = ImagesConfig(file=config.file, permute_seed=2).load()
    assert not torch.equal(pixels(other.train), pixels(corpus.train))


# Damage.

x, y = arrays()["x_train"], arrays()["y_train"]
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "floats": ({"x_train": x / 255}, "x_train holds float64 of shape (12, 6, 8)"),
    "wide numbers": ({"x_test": x.astype(np.int64)}, "x_test holds int64"),
    "flat images": ({"x_train": x.reshape(12, 48)}, "shape (12, 48)"),
    "no images": ({"x_train": x[:0], "y_train": y[:0]}, "shape (0, 6, 8)"),
    "no pixels": ({"x_train": x[:, :0]}, "shape (12, 0, 8)"),
    "sizes that differ": ({"x_test": x[:4, :, :6]}, "differ in size: 1 × 6 × 6 and 1 × 6 × 8"),
    "too few labels": ({"y_train": y[:11]}, "y_train holds int64 of shape (11,)"),
    "labels with a point": ({"y_train": y / 2}, "y_train holds float64"),
    "labels in rows": ({"y_train": y[:, None]}, "shape (12, 1)"),
    "names as labels": ({"y_train": np.array(["a"] * 12)}, "y_train holds <U1"),
    "a negative label": ({"y_train": y - 1}, "y_train[0] = -1: classes are numbers from 0"),
    "an unknown label": ({"y_test": np.array([0, 1, 2, 3])}, "y_test[3]: the label '3' never"),
    "objects": ({"x_train": np.array([{}] * 12)}, "allow_pickle"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arrays_are_one_message(case: str, tmp_path: Path) -> None:
    changes, expected = WRONG[case]
    assert expected in refusal(write(tmp_path, **changes))


def test_a_missing_array_and_a_missing_file(tmp_path: Path) -> None:
    path = write(tmp_path)
    said = refusal(path, train=("x_trian", "y_train"))
    assert said.endswith(
        "no array 'x_trian'. Did you mean 'x_train'? Valid: x_train, y_train, x_test, y_test."
    )
    with pytest.raises(InputError, match=r"Did you mean 'images\.npz'"):
        ImagesConfig(file=Path("image.npz"), root=tmp_path).load()


def npz(held: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **held)
    return file.getvalue()


WHOLE = npz({"x_train": x, "y_train": y, "x_test": x, "y_test": y})


@settings(max_examples=40)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "images.npz"
    content = bytearray(WHOLE)
    if data.draw(st.booleans()):
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
    with suppress(InputError):  # and nothing else; or else the flipped bit was, say, of a date
        assert torch.equal(pixels(ImagesConfig(file=path).load().train)[:, 0], torch.from_numpy(x))


def test_a_file_that_is_not_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    np.save(tmp_path / "x.npy", x)
    for content in (b"", b"words", (tmp_path / "x.npy").read_bytes()):
        path.write_bytes(content)
        assert "is not an .npz file, or is damaged" in refusal(path)
    with zipfile.ZipFile(path, "w") as file:
        for name in arrays():
            file.writestr(f"{name}.npy", "no array")
    assert "the magic string is not correct" in refusal(path)


def test_a_header_that_claims_too_much(tmp_path: Path) -> None:
    path = write(tmp_path)
    header = io.BytesIO()
    wide = {"descr": "|u1", "fortran_order": False, "shape": (10**6, 10**6, 10**6)}
    np.lib.format.write_array_header_1_0(header, wide)
    with zipfile.ZipFile(path, "w") as file:
        for name in arrays():
            file.writestr(f"{name}.npy", header.getvalue())
    assert refusal(path)


# Batches.


def encoded(n: int = 12) -> EncodedCorpus:
    pictures = torch.arange(n * 30, dtype=torch.uint8).view(n, 1, 5, 6)
    examples = [Image(one, str(i % 3)) for i, one in enumerate(pictures)]
    return encode(Corpus(train=examples, valid=examples[:3], test=examples[:2]), None)


def test_an_image_is_encoded_with_its_class() -> None:
    corpus = encoded()
    assert corpus.medium == "images"
    assert [one.targets for one in corpus.train[:4]] == [[0], [1], [2], [0]]
    with pytest.raises(InputError, match="unknown label '2'"):
        encode(Corpus(train=[Image(torch.zeros(1, 2, 2, dtype=torch.uint8), "2")]), None, ["0"])


def with_texts(n: int = 12) -> EncodedCorpus:
    pictures = torch.arange(n * 30, dtype=torch.uint8).view(n, 1, 5, 6)
    examples = [Captioned(one, "abcd"[: 1 + i % 4]) for i, one in enumerate(pictures)]
    tokenizers = Tokenizers.train(CharConfig(), Corpus(train=examples))
    return encode(Corpus(train=examples), tokenizers)


def test_images_with_texts_are_changed_and_keep_their_texts() -> None:
    """Augmentation was for classes alone, and took the ids of a text for those."""
    plain = ExamplesConfig(size=5).build(with_texts(), seed=3).train
    flipped = ExamplesConfig(size=5, augment=(FlipConfig(probability=1.0),))
    both = zip(plain.batches(), flipped.build(with_texts(), seed=3).train.batches(), strict=True)
    for as_it_is, changed in both:
        assert changed.indices == as_it_is.indices
        assert torch.equal(changed.inputs["source"], as_it_is.inputs["source"].flip(-1))
        assert torch.equal(changed.inputs["target"], as_it_is.inputs["target"])
        assert torch.equal(changed.targets, as_it_is.targets)
        assert changed.soft_targets is None


@pytest.mark.parametrize("mixed", [MixupConfig(), CutMixConfig()])
def test_texts_are_not_mixed(mixed: MixupConfig | CutMixConfig) -> None:
    with pytest.raises(InputError, match="mixup and cutmix mix the classes of images"):
        ExamplesConfig(size=5, augment=(mixed,)).build(with_texts(), seed=3)


def test_a_batch_is_what_a_model_reads() -> None:
    loaders = ExamplesConfig(size=5).build(encoded(), seed=3)
    batches = list(loaders.train.batches())
    assert [len(batch.indices) for batch in batches] == [5, 5, 2] == [b.n_tokens for b in batches]
    assert sorted(i for batch in batches for i in batch.indices) == list(range(12))
    for batch in batches:
        held = torch.stack([encoded().train[i].signal for i in batch.indices])  # type: ignore[misc]
        assert torch.equal(batch.inputs["inputs"], held.float() / 127.5 - 1)
        assert batch.targets.tolist() == [i % 3 for i in batch.indices]
    for loader, n in ((loaders.valid, 3), (loaders.test, 2)):
        assert loader is not None
        assert [batch.indices for batch in loader.batches()] == [list(range(n))]


def test_black_and_white() -> None:
    examples = [Image(torch.tensor([[[0, 255]]], dtype=torch.uint8), "0")]
    [batch] = ExamplesConfig().build(encode(Corpus(train=examples), None)).train.batches()
    assert batch.inputs["inputs"].tolist() == [[[[-1.0, 1.0]]]]


@settings(max_examples=20)
@given(down=st.integers(-3, 3), right=st.integers(-3, 3))
def test_moving_is_that_of_every_pixel(down: int, right: int) -> None:
    image = torch.arange(1, 31, dtype=torch.uint8).view(1, 5, 6)
    out = moved(image, down, right)
    for row in range(5):
        for column in range(6):
            at = row - down, column - right
            inside = 0 <= at[0] < 5 and 0 <= at[1] < 6
            assert out[0, row, column] == (image[0, *at] if inside else 0)


def test_moves_are_within_reach_and_all_there() -> None:
    loader = Images(encoded(300), encoded(300).train, 300, seed=1, shift=2)
    [plan] = loader.plan(0)
    assert {one.down for one in plan} == {one.right for one in plan} == set(range(-2, 3))
    [batch] = loader.batches()
    i, down, right, _ = plan[0]
    held = loader.examples[i].signal
    assert held is not None
    expected = F.pad(held, (right, -right, down, -down)).float() / 127.5 - 1
    assert torch.equal(batch.inputs["inputs"][0], expected)
    unmoved = Images(encoded(300), encoded(300).train, 300, shift=2).plan(0)[0]
    assert list(unmoved) == [(i, 0, 0, 0) for i in range(300)]


@settings(max_examples=15)
@given(seed=st.integers(0, 9), epoch=st.integers(0, 5), start=st.integers(0, 3))
def test_an_epoch_resumes_from_any_place(seed: int, epoch: int, start: int) -> None:
    """Order and moves are functions of (seed, epoch, example): no state is kept."""
    loader = Images(encoded(), encoded().train, 3, seed=seed, shift=1)
    whole = list(loader.batches(epoch))
    loader = Images(encoded(), encoded().train, 3, seed=seed, shift=1)
    list(loader.batches(epoch + 1))
    rest = list(loader.batches(epoch, start))
    assert len(whole) == len(loader) == start + len(rest)
    for one, other in zip(whole[start:], rest, strict=True):
        assert one.indices == other.indices
        assert torch.equal(one.inputs["inputs"], other.inputs["inputs"])
    assert loader.plan(epoch) != loader.plan(epoch + 1)
    assert loader.plan(epoch) != Images(encoded(), loader.examples, 3, seed=seed + 1, shift=1).plan(
        epoch
    )


def of_sizes(*sizes: tuple[int, int]) -> EncodedCorpus:
    pictures = [torch.full((1, *size), i, dtype=torch.uint8) for i, size in enumerate(sizes)]
    labelled = [Image(one, str(i % 2)) for i, one in enumerate(pictures)]
    return encode(Corpus(train=labelled, valid=labelled[:5]), None)


@settings(max_examples=20)
@given(
    sizes=st.lists(st.sampled_from([(2, 3), (3, 2), (4, 4), (1, 9)]), min_size=5, max_size=30),
    size=st.integers(1, 4),
    pixels=st.integers(16, 60),
    epoch=st.integers(0, 3),
)
def test_images_of_several_sizes(
    sizes: list[tuple[int, int]], size: int, pixels: int, epoch: int
) -> None:
    """Each in one batch of its size, which has neither more images nor more pixels than may be."""
    loaders = ExamplesConfig(size=size, pixels=pixels).build(of_sizes(*sizes), seed=1)
    assert loaders.valid is not None
    for loader, n in ((loaders.train, len(sizes)), (loaders.valid, 5)):
        batches = list(loader.batches(epoch))
        assert sorted(i for batch in batches for i in batch.indices) == list(range(n))
        assert len(batches) == len(loader)
        for batch in batches:
            images = batch.inputs["inputs"]
            assert {sizes[i] for i in batch.indices} == {tuple(images.shape[-2:])}
            assert len(images) <= size
            assert images.numel() <= pixels


def test_several_sizes_come_in_a_new_order_every_epoch() -> None:
    loader = ExamplesConfig(size=2).build(of_sizes(*[(2, 3), (3, 2)] * 10), seed=1).train
    orders = [[tuple(one.indices) for one in loader.batches(epoch)] for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    shapes = [tuple(one.inputs["inputs"].shape[-2:]) for one in loader.batches(0)]
    assert shapes not in (sorted(shapes), sorted(shapes, reverse=True))


def test_an_image_larger_than_a_batch_is_refused() -> None:
    with pytest.raises(InputError, match=r"4 × 4 pixels .* raise train.batching.pixels = 15 to 16"):
        ExamplesConfig(pixels=15).build(of_sizes((2, 2), (4, 4), (3, 3), (2, 2), (2, 2)))


def test_text_and_images_have_their_own_batches() -> None:
    texts = Corpus(train=[Labelled("a", "x")])
    text = encode(texts, Tokenizers.train(CharConfig(), texts))
    with pytest.raises(InputError, match='text needs kind = "tokens"'):
        ExamplesConfig().build(text)
    with pytest.raises(InputError, match='images need kind = "examples"'):
        TokensConfig().build(encoded())
    for config in (WindowsConfig(), PackedConfig()):
        with pytest.raises(InputError, match='classification needs kind = "examples"'):
            config.build(encoded())
