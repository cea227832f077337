"""Classes of image and sound files: learnt classes, or given labels compared with pictures."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from addnorm.errors import InputError, refuse
from addnorm.models import DualEncoderModel
from addnorm.nn.contrastive import PROBABILITIES
from addnorm.runs.inference import media
from addnorm.runs.inference.results import Classified
from addnorm.runs.inference.text import embed
from addnorm.runs.inference.zero_shot import check_labels
from addnorm.runs.trained_model import TrainedModel

OF_PICTURE = "This is a photo of {}."
"""The sentence that a label of a picture is put in."""


def classify_files(
    run: TrainedModel,
    files: Sequence[Path],
    *,
    labels: Sequence[str] = (),
    hypothesis: str | None = None,
    threshold: float | None = None,
    skipped: Callable[[InputError], None] = refuse,
) -> Iterator[tuple[Path, Classified]]:
    """Yield the class of each image or clip, in the order of the files (see `Run.classify_files`).

    Of a model of pictures and texts it is the one of the `labels` whose sentence fits the picture
    best (Radford et al. 2021, §3.1): `p = softmax over labels of z`, or `σ(z)` of each label where
    it learnt so, as in SigLIP. Raises `InputError` for labels of another model, and for none.
    """
    if threshold is not None:
        raise InputError("`threshold` is for texts with several labels: leave it out")
    if isinstance(run.model, DualEncoderModel):
        return _compared(run, run.model, files, labels, hypothesis or OF_PICTURE, skipped)
    if labels or hypothesis is not None:
        raise InputError(
            f"{run.name}: only a model that compares pictures with texts, such as CLIP, chooses "
            "between `labels` of your own: leave them out"
        )
    return media.classify_files(run, files, skipped=skipped)


@torch.inference_mode()
def _compared(
    run: TrainedModel,
    model: DualEncoderModel,
    files: Sequence[Path],
    labels: Sequence[str],
    hypothesis: str,
    skipped: Callable[[InputError], None],
) -> Iterator[tuple[Path, Classified]]:
    if not labels:
        raise InputError(
            f"{run.name}: it compares pictures with texts: name the classes by `labels`, such as "
            "`labels = cat dog`"
        )
    check_labels(labels, hypothesis)
    texts = embed(run, [hypothesis.replace("{}", label) for label in labels])
    probabilities = PROBABILITIES[model.head.loss]
    for file, picture in media.embed_files(run, files, skipped=skipped):
        row = probabilities(model.head(picture[None], texts)[0])
        yield file, Classified.of(labels, row.tolist())  # pyright: ignore[reportUnknownMemberType]
