"""A bi-encoder on its way to other libraries: the encoder, which gives a text its vector."""

import json
from dataclasses import replace
from pathlib import Path

from addnorm.convert.core.modules import FILE
from addnorm.errors import InputError
from addnorm.models import EncoderConfig, EncoderModel, Model
from addnorm.nn.heads import HiddenHead, HiddenHeadConfig
from addnorm.nn.similarity import SimilarityHead, SimilarityHeadConfig
from addnorm.runs.trained_model import TrainedModel

MODES = {"mean": "mean", "max": "max", "first": "cls"}
"""sentence-transformers' names of our poolings."""


def giving_vectors(model: Model) -> Model:
    """Return a bi-encoder as a model that gives the vector of each text; any other unchanged."""
    if not isinstance(model, EncoderModel) or not isinstance(model.head, SimilarityHead):
        return model
    return EncoderModel(model.embed, model.stack, model.head.vectors)


def without_head(run: TrainedModel) -> TrainedModel:
    """Return a bi-encoder as an encoder that gives hidden states; any other run unchanged."""
    config, model = run.recipe.model, run.model
    if not isinstance(config, EncoderConfig) or not isinstance(config.head, SimilarityHeadConfig):
        return run
    assert isinstance(model, EncoderModel)
    encoder = EncoderModel(model.embed, model.stack, HiddenHead())
    recipe = replace(run.recipe, model=replace(config, head=HiddenHeadConfig()))
    return replace(run, recipe=recipe, model=encoder, labels=())


def write_pooling(out: Path, run: TrainedModel) -> None:
    """Write how a bi-encoder pools hidden states, as sentence-transformers reads it.

    Its vectors are compared by their cosine there too. Raises `InputError` for a pooling that it
    lacks.
    """
    head, width = run.recipe.model.head, run.recipe.model.d_model
    if not isinstance(head, SimilarityHeadConfig):
        return
    if not isinstance(head.pooling, str) or head.pooling not in MODES:
        raise InputError(
            f"sentence-transformers does not have this model's pooling: it has {', '.join(MODES)}"
        )
    kinds = ("Transformer", "Pooling")
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    settings = {"word_embedding_dimension": width, "pooling_mode": MODES[head.pooling]}
    (out / "1_Pooling").mkdir()
    (out / "1_Pooling" / "config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    (out / FILE).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
