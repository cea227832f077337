"""Images and sound clips as a model's inputs, with the classes or the texts that it learns."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from addnorm.data.batches.batch import Batch
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.ids.layout import Padding
from addnorm.data.media import PROPERTIES, Medium


def inputs_of(medium: Medium, signals: Sequence[Tensor]) -> dict[str, Tensor]:
    """Images of one size or clips of any length as an encoder's inputs."""
    padded = PROPERTIES[medium].padded
    return side_by_side(signals) if padded else {"inputs": scaled(torch.stack([*signals]))}


def side_by_side(clips: Sequence[Float[Tensor, "n_mels _"]]) -> dict[str, Tensor]:
    """The clips as a model's inputs, with the mask of the real frames where some are padded."""
    lengths = torch.tensor([clip.shape[-1] for clip in clips])
    width = int(lengths.max())
    inputs = torch.zeros(len(clips), clips[0].shape[0], width)
    for row, clip in zip(inputs, clips, strict=True):
        row[:, : clip.shape[-1]] = clip
    if bool((lengths == width).all()):
        return {"inputs": inputs}
    return {"inputs": inputs, "valid": torch.arange(width) < lengths[:, None]}


def scaled(
    images: Shaped[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch channels height width"]:
    """The images from -1 (black) to 1 (white)."""
    return images.float() / 127.5 - 1


def batch_of(
    corpus: EncodedCorpus, examples: Sequence[Encoded], inputs: Mapping[str, Tensor]
) -> Batch:
    """The batch of these inputs, with the targets as the corpus lays them out."""
    padding = Padding(corpus.bos_id, corpus.pad_id)
    arguments, targets = corpus.layout.arranged(inputs, examples, padding)
    return Batch.of(arguments, targets, [example.index for example in examples])
