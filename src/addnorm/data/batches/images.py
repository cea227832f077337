"""Batches of images, with random changes in training."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Float, UInt8
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from addnorm.config import WORD, config
from addnorm.data.batches.augmentation import (
    Augmentation,
    CropConfig,
    CutMixConfig,
    ErasingConfig,
    Examples,
    FlipConfig,
    MixupConfig,
)
from addnorm.data.batches.batch import (
    Batch,
    Loader,
    Loaders,
    batch_of,
    check_medium,
    chunks,
    epoch_random,
    scaled,
)
from addnorm.data.batches.randaugment import RandAugmentConfig
from addnorm.data.ids.encoding import Encoded, EncodedCorpus
from addnorm.errors import InputError

AugmentationConfig = Annotated[
    CropConfig | FlipConfig | RandAugmentConfig | ErasingConfig | MixupConfig | CutMixConfig,
    Field(discriminator="kind"),
    WORD,
]
"""Any augmentation of images."""


class Drawn(NamedTuple):
    """The index of an example, its shift down and right, and the seed for other changes."""

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
        self.sizes = [size_of(example) for example in examples]
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
        """Return indices of examples with their random draws, in a new order every epoch."""
        rng = epoch_random(self.seed, epoch)
        if rng is None:
            return self.by_size([Drawn(i) for i in range(len(self.examples))])
        reach = range(-self.shift, self.shift + 1)
        drawn = [Drawn(i, rng.choice(reach), rng.choice(reach)) for i in range(len(self.examples))]
        rng.shuffle(drawn)
        if self.augment:
            drawn = [item._replace(seed=rng.getrandbits(32)) for item in drawn]
        batches = self.by_size(drawn)
        if len(self.at_most) > 1:
            rng.shuffle(batches)
        return batches

    def by_size(self, drawn: Sequence[Drawn]) -> list[Sequence[Drawn]]:
        """Group images of equal size into batches, in order, the smallest size first."""
        of_size: dict[tuple[int, int], list[Drawn]] = {size: [] for size in self.at_most}
        for item in drawn:
            of_size[self.sizes[item.example]].append(item)
        return [part for size, n in self.at_most.items() for part in chunks(of_size[size], n)]

    def build(self, items: Sequence[Drawn]) -> Batch:
        """Build a batch of images, scaled to -1 (black) … 1 (white), with classes or texts."""
        examples = [self.examples[item.example] for item in items]
        pixels = [
            moved(example.signal, item.down, item.right)
            for example, item in zip(examples, items, strict=True)
            if example.signal is not None
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
        """Return 1 for each image's class and 0 for all others; images with texts have none."""
        if self.corpus.task != "classification":
            return torch.zeros(len(examples), 0)
        targets = torch.tensor([label for example in examples for label in example.targets])
        return F.one_hot(targets, max(self.corpus.n_labels, 1 + int(targets.max()))).float()


class Normalised(Loader[Any]):
    """The batches of `images`, each channel normalised: `(p - mean) / std`, `p` from 0 to 1."""

    def __init__(self, images: Loader[Any], mean: Sequence[float], std: Sequence[float]) -> None:
        self.images = images
        self.mean, self.std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (mean, std))

    def plan(self, epoch: int) -> Sequence[Sequence[Any]]:
        """Return the items of each batch of an epoch."""
        return self.images.plan(epoch)

    def build(self, items: Sequence[Any]) -> Batch:
        """Build the batch from that of `images`, whose pixels are from -1 to 1."""
        batch = self.images.build(items)
        pixels = (batch.inputs["images"] + 1) / 2
        return replace(batch, inputs=batch.inputs | {"images": (pixels - self.mean) / self.std})


def size_of(example: Encoded) -> tuple[int, int]:
    """Return the height and width of an image."""
    assert example.signal is not None
    return example.signal.shape[-2], example.signal.shape[-1]


def mixes(augment: Sequence[Augmentation]) -> bool:
    """Whether batches mix images, so that one has several classes with probabilities."""
    return any(isinstance(change, MixupConfig | CutMixConfig) for change in augment)


def moved(
    image: UInt8[Tensor, "channels height width"], down: int, right: int
) -> UInt8[Tensor, "channels height width"]:
    """Shift the image within its frame, filling with black."""
    return F.pad(image, (right, -right, down, -down)) if down or right else image


@config
class ExamplesConfig:
    """Batches of `size` images; in training, each is moved at random by up to `shift` pixels.

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
                f"have targets of {corpus.task}: leave them out"
            )
        options: Any = {"shift": self.shift, "augment": self.augment, "pixels": self.pixels}

        def images(examples: Sequence[Encoded], seed: int | None) -> Images:
            return Images(corpus, examples, self.size, seed=seed, **options)

        return Loaders.of(corpus, seed, images)
