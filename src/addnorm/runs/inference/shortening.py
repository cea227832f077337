"""Long texts at inference: shortened as in training, or rejected."""

import json
from collections.abc import Sequence
from pathlib import Path
from warnings import warn

from addnorm.atomic import atomic_write
from addnorm.data.batches.buckets import TokensConfig
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.framing import Read, around
from addnorm.errors import Shortened
from addnorm.generate.next_token import positions_for
from addnorm.models import DecoderConfig, EncoderDecoderModel, Model
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.trained_model import TrainedModel


def most_tokens(recipe: Recipe) -> int | None:
    """Return the number of tokens to which training shortened inputs; None for no limit.

    A language model has no such number: training did not cut prompts at their ends.
    """
    batching = recipe.train.batching
    if isinstance(recipe.model, DecoderConfig) or not isinstance(batching, TokensConfig):
        return None
    return batching.max_len if batching.longer == "shorten" else None


def examples_as_shortened(run: TrainedModel, examples: Sequence[Encoded]) -> list[Encoded]:
    """Shorten each example's input as in training, with a warning."""
    most = most_tokens(run.recipe)
    if most is None or all(len(example.tokens) <= most for example in examples):
        return [*examples]
    warn(
        f"{run.name}: texts of more than {most} tokens are shortened, as in training: "
        f"train.batching.max_len = {most}",
        Shortened,
        stacklevel=4,
    )
    before, after = around(run.task, run.tokenizers.source)
    special, shortened = (len(before), len(after)), run.task_value.layout.shortened
    return [shortened(example, most, special) for example in examples]


def as_shortened(run: TrainedModel, read: Sequence[Read]) -> list[Read]:
    """Shorten the ids of each text or pair as in training, with a warning."""
    examples = [Encoded(i, row.ids, [], None, None, *row[1:]) for i, row in enumerate(read)]
    cut = examples_as_shortened(run, examples)
    return [Read(row.tokens, row.types, row.spans) for row in cut]


def ids_as_shortened(run: TrainedModel, ids: Sequence[list[int]]) -> list[list[int]]:
    """Shorten the ids of each text as in training."""
    return [row.ids for row in as_shortened(run, [*map(Read, ids)])]


def check_lengths(
    model: Model,
    encoded: Sequence[Sequence[int]],
    first: int,
) -> None:
    """Raise `InputError` for the first text that has more tokens than the model has positions."""
    embed = model.source_embed if isinstance(model, EncoderDecoderModel) else model.embed
    for number, ids in enumerate(encoded, start=first + 1):
        positions_for(embed, number, ids)


def write_most_tokens(folder: Path, run: TrainedModel) -> None:
    """Write the length to which texts are shortened to a folder's `tokenizer_config.json`."""
    most, file = most_tokens(run.recipe), folder / "tokenizer_config.json"
    if most is None or not file.is_file():
        return
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["model_max_length"] = min(most, settings["model_max_length"])
    atomic_write(file, json.dumps(settings, ensure_ascii=False, indent=2) + "\n")
