"""Long texts in use: shortened as training shortened them."""

import json
from collections.abc import Sequence
from pathlib import Path
from warnings import warn

from addnorm.atomic import atomic_write
from addnorm.data.batches.buckets import TokensConfig
from addnorm.data.ids.compact import Encoded, shortened
from addnorm.data.ids.framing import around
from addnorm.data.ids.sentence_pairs import Read
from addnorm.errors import Shortened
from addnorm.models import DecoderConfig
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.trained_model import TrainedModel


def most_tokens(recipe: Recipe) -> int | None:
    """The tokens to which training shortened what a model reads; None where it shortened nothing.

    A language model has no such number: a prompt is no text that training cut at its end.
    """
    batching = recipe.train.batching
    if isinstance(recipe.model, DecoderConfig) or not isinstance(batching, TokensConfig):
        return None
    return batching.max_len if batching.longer == "shorten" else None


def as_shortened(run: TrainedModel, read: Sequence[Read]) -> list[Read]:
    """What a model reads of each text or pair, shortened as in training, with a warning."""
    most = most_tokens(run.recipe)
    if most is None or all(len(one.ids) <= most for one in read):
        return [*read]
    warn(
        f"{run.name}: texts of more than {most} tokens are shortened, as in training: "
        f"train.batching.max_len = {most}",
        Shortened,
        stacklevel=3,
    )
    return [_cut(run, one, most) for one in read]


def ids_as_shortened(run: TrainedModel, ids: Sequence[list[int]]) -> list[list[int]]:
    """The ids of each text, shortened as in training."""
    return [one.ids for one in as_shortened(run, [*map(Read, ids)])]


def _cut(run: TrainedModel, read: Read, most: int) -> Read:
    before, after = around(run.task, run.tokenizers.source)
    example = Encoded(0, read.ids, [], types=read.types, spans=read.spans)
    cut = shortened(run.task, example, most, special=(len(before), len(after)))
    return Read(cut.tokens, cut.types, cut.spans)


def write_most_tokens(folder: Path, run: TrainedModel) -> None:
    """Say in the `tokenizer_config.json` of a folder to how many tokens texts are shortened."""
    most, file = most_tokens(run.recipe), folder / "tokenizer_config.json"
    if most is None or not file.is_file():
        return
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["model_max_length"] = min(most, settings["model_max_length"])
    atomic_write(file, json.dumps(settings, ensure_ascii=False, indent=2) + "\n")
