"""One vector for each text, image or clip, from its hidden states."""

from dataclasses import replace

import torch
from torch import Tensor

from addnorm.errors import InputError
from addnorm.models import EncoderModel
from addnorm.nn.context import Context
from addnorm.nn.functional import at_least_float32
from addnorm.nn.heads import ClassificationHead
from addnorm.nn.similarity import SimilarityHead
from addnorm.runs.inference.results import Pooling
from addnorm.runs.trained_model import TrainedModel


def pooled(run: TrainedModel, x: Tensor, ctx: Context, pooling: Pooling | None) -> Tensor:
    """Pool the hidden states into one vector per input, by default as the model learnt to.

    Raises `InputError` for `pooling = "head"` where the head gives no vector.
    """
    if isinstance(run.model.head, SimilarityHead) and pooling in (None, "head"):
        return at_least_float32(run.model.head.vectors(x, ctx))
    if pooling == "head":
        vectors = run.model.head(x, ctx) if isinstance(run.model, EncoderModel) else x
        if isinstance(run.model.head, ClassificationHead) or vectors.ndim != 2:
            raise InputError(
                f"{run.name}: pooling = 'head' needs a head that gives a vector for a text, as "
                "'pooler' does: use 'mean', 'first' or 'last'"
            )
        return at_least_float32(vectors)
    if ctx.valid is None:  # images, or clips of one length
        ctx = replace(ctx, kv_valid=torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))
    assert ctx.valid is not None
    lengths, x = ctx.valid.sum(1), at_least_float32(x)
    if pooling in (None, "mean"):
        return torch.where(ctx.valid[..., None], x, 0.0).sum(1) / lengths[:, None]
    places = torch.zeros_like(lengths) if pooling == "first" else lengths - 1
    return x[torch.arange(len(x), device=x.device), places]
