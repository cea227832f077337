"""Images in .npz files, and batches of images with random changes."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from addnorm.config import WORD, Probability, config
from addnorm.data.augmentation import (
    Augmentation,
    CropConfig,
    ErasingConfig,
    Examples,
    FlipConfig,
)
from addnorm.data.batch import Batch, Loader, Loaders, check_medium, chunks, dice
from addnorm.data.encoding import Encoded, EncodedCorpus
from addnorm.data.examples import Corpus, Image
from addnorm.data.mixing import CutMixConfig, MixupConfig
from addnorm.data.randaugment import RandAugmentConfig
from addnorm.data.rows import Row, assemble
from addnorm.data.signals import batch_of, scaled
from addnorm.data.strings import StringsConfig
from addnorm.data.text_files import find, given
from addnorm.errors import InputError, choices

Array = NDArray[Any]
Pixels = UInt8[Tensor, "images channels height width"]


@config
class ImagesConfig:
    """Classification of images in an .npz file: whole numbers from 0, black, to 255, white.

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
            f"{path}: {name} holds {array.dtype} of shape {array.shape}: images are whole numbers "
            "of 8 bits (uint8), n × height × width or n × height × width × channels"
        )
    images = torch.from_numpy(np.ascontiguousarray(array))
    return images[:, None] if images.ndim == 3 else images.movedim(-1, 1).contiguous()


def rows_of(place: str, images: Pixels, labels_place: str, labels: Array) -> Iterator[Row]:
    """Yield an example for each image. Raises `InputError` unless each has exactly one class."""
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise InputError(
            f"{labels_place} holds {labels.dtype} of shape {labels.shape}: "
            f"{place} needs {len(images):,} classes, whole numbers"
        )
    for i, (pixels, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        if label < 0:
            raise InputError(f"{labels_place}[{i}] = {label}: classes are numbers from 0")
        yield Row(f"{labels_place}[{i}]", Image(pixels, str(label)))


AugmentationConfig = Annotated[
    CropConfig | FlipConfig | RandAugmentConfig | ErasingConfig | MixupConfig | CutMixConfig,
    Field(discriminator="kind"),
    WORD,
]
"""Any augmentation of images."""


class Drawn(NamedTuple):
    """The number of an example, its shift downwards and to the right, and the seed of the rest."""

    example: int
    down: int = 0
    right: int = 0
    seed: int = 0


class Images(Loader[Drawn]):
    """Batches of `size` images, randomly shifted by up to `shift` pixels along each axis.

    Then each of `augment` changes them, in this order. The order of the images and all changes are
    determined by seed and epoch; without a seed there are none. Mixed images have `soft_targets`,
    the probabilities of all classes. The images of a batch have one size; there are
    fewer of them where they would have more than `pixels` together. Raises `InputError` for an
    image that has more by itself.
    """

    def __init__(
        self,
        corpus: EncodedCorpus,
        examples: Sequence[Encoded],
        size: int,
        *,
        seed: int | None = None,
        shift: int = 0,
        augment: Sequence[Augmentation] = (),
        pixels: int | None = None,
    ) -> None:
        self.corpus = corpus
        self.examples = examples
        self.size = size
        self.seed = seed
        self.shift = shift
        self.augment = augment
        self.sizes = [size_of(one) for one in examples]
        self.at_most = dict.fromkeys(sorted(set(self.sizes)), size)
        for (height, width), n in self.at_most.items():
            fitting = n if pixels is None else min(n, pixels // (height * width))
            if not fitting:
                raise InputError(
                    f"an image of {height} × {width} pixels is larger than a batch: raise "
                    f"train.batching.pixels = {pixels:,} to {height * width:,}"
                )
            self.at_most[height, width] = fitting

    def plan(self, epoch: int) -> list[Sequence[Drawn]]:
        """Indices of examples with their draws, in a new order every epoch."""
        rng = dice(self.seed, epoch)
        if rng is None:
            return self.by_size([Drawn(i) for i in range(len(self.examples))])
        reach = range(-self.shift, self.shift + 1)
        drawn = [Drawn(i, rng.choice(reach), rng.choice(reach)) for i in range(len(self.examples))]
        rng.shuffle(drawn)
        if self.augment:
            drawn = [one._replace(seed=rng.getrandbits(32)) for one in drawn]
        batches = self.by_size(drawn)
        if len(self.at_most) > 1:
            rng.shuffle(batches)
        return batches

    def by_size(self, drawn: Sequence[Drawn]) -> list[Sequence[Drawn]]:
        """Batches of images of one size each, in their order, the smallest size first."""
        of_size: dict[tuple[int, int], list[Drawn]] = {size: [] for size in self.at_most}
        for one in drawn:
            of_size[self.sizes[one.example]].append(one)
        return [part for size, n in self.at_most.items() for part in chunks(of_size[size], n)]

    def build(self, items: Sequence[Drawn]) -> Batch:
        """Build a batch of images, scaled to -1 (black) … 1 (white), with classes or texts."""
        examples = [self.examples[one.example] for one in items]
        pixels = [
            moved(one.signal, item.down, item.right)
            for one, item in zip(examples, items, strict=True)
            if one.signal is not None
        ]
        images: UInt8[Tensor, "batch channels height width"] = torch.stack(pixels)
        if self.seed is None or not self.augment:
            return batch_of(self.corpus, examples, {"inputs": scaled(images)})
        changed = Examples(images.float(), self.classes(examples))
        generators = [Random(item.seed) for item in items]
        for augmentation in self.augment:
            changed = augmentation(changed, generators)
        batch = batch_of(self.corpus, examples, {"inputs": scaled(changed.images)})
        return replace(batch, soft_targets=changed.classes) if mixes(self.augment) else batch

    def classes(self, examples: Sequence[Encoded]) -> Float[Tensor, "batch classes"]:
        """The probability of each class of each image, one of 1; of images with texts none."""
        if self.corpus.task != "classification":
            return torch.zeros(len(examples), 0)
        targets = torch.tensor([label for one in examples for label in one.targets])
        return F.one_hot(targets, max(self.corpus.n_labels, 1 + int(targets.max()))).float()


def size_of(example: Encoded) -> tuple[int, int]:
    """Height and width of an image."""
    assert example.signal is not None
    return example.signal.shape[-2], example.signal.shape[-1]


def mixes(augment: Sequence[Augmentation]) -> bool:
    """Whether images get several classes, with their probabilities."""
    return any(isinstance(one, MixupConfig | CutMixConfig) for one in augment)


def moved(
    image: UInt8[Tensor, "channels height width"], down: int, right: int
) -> UInt8[Tensor, "channels height width"]:
    """Shift the image within its frame, filling with black."""
    return F.pad(image, (right, -right, down, -down)) if down or right else image


@config
class ExamplesConfig:
    """For images: `size` of them to a batch, in training moved at random by up to `shift` pixels.

    The images of a batch have one size; where there are several, `pixels` bounds its cost. Leave
    pixels that are shuffled, by `data.permute_seed`, where they are.
    """

    kind: Literal["examples"] = "examples"
    size: PositiveInt = 128
    """Images in a batch."""
    pixels: PositiveInt | None = None
    """The most pixels of a batch: of large images it has fewer than `size`; by default any."""
    shift: NonNegativeInt = 0
    """The maximum random shift of a training image along each axis, in pixels."""
    augment: tuple[AugmentationConfig, ...] = ()
    """Further random changes of training images, one after the other; by default none."""

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
        """Build the loaders of an image corpus. Raises `InputError` for text, read or mixed."""
        check_medium(corpus, "examples", "images")
        if corpus.task != "classification" and mixes(self.augment):
            raise InputError(
                "train.batching.augment: mixup and cutmix mix the classes of images, and these "
                "have texts: leave them out"
            )
        return Loaders(
            Images(
                corpus,
                corpus.train,
                self.size,
                seed=seed,
                shift=self.shift,
                augment=self.augment,
                pixels=self.pixels,
            ),
            Images(corpus, corpus.valid, self.size, pixels=self.pixels) if corpus.valid else None,
            Images(corpus, corpus.test, self.size, pixels=self.pixels) if corpus.test else None,
            corpus.reports,
        )
