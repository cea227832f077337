"""The settings with which scores were measured; only scores with equal settings are comparable."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from addnorm.data import lowercases
from addnorm.generate.rules import NO_RULES
from addnorm.runs.recipes.recipe import RECIPE, Recipe, task_of
from addnorm.tasks.contract import checked


def measured_with(
    recipe: Recipe, metric: str, *, validation: bool = False, lowercase: bool = False
) -> str:
    """Return the settings of a metric's scores as one line; empty if it has none.

    It names the package and its settings, the decoding by which texts were written, and in a
    `validation` during training how many of them. The same recipe gives the same line, so a figure
    that is kept with its line can be compared with another only where the lines are equal. Data
    given in Python are in no recipe: `lowercase` says then whether they are in lower case.
    """
    task = task_of(recipe)
    settings = task.measured_with(metric, recipe.eval)
    checked(task, "measured_with", settings, str, "return the settings as text, or an empty one")
    parts = [settings or _batches(recipe, metric)]
    if metric in task.written_metrics:
        parts.append(f"written by {_decoding(recipe)}")
        if validation:
            parts.append(f"first {recipe.eval.valid_examples:,} examples")
    if any(parts) and (lowercase or lowercases(recipe.data)):
        parts.append("texts in lower case")
    return "; ".join(part for part in parts if part)


def main_metric(recipe: Recipe) -> str:
    """The metric that picks the best weights."""
    return recipe.eval.metric or task_of(recipe).metrics[0]


def measure_of(recipe: Recipe, valid_data: str) -> str:
    """The main metric with everything that affects its value, such as the validation data's digest.

    Two validations during training compare only where it is the same.
    """
    metric = main_metric(recipe)
    with_what = measured_with(recipe, metric, validation=True)
    return f"{metric}{f' ({with_what})' if with_what else ''} of validation data {valid_data[:12]}"


def lines_of(
    recipe: Recipe, metrics: Iterable[str], *, validation: bool = False, lowercase: bool = False
) -> dict[str, str]:
    """Return the settings of each metric's scores, for the metrics that have settings."""
    lines = {
        name: measured_with(recipe, name, validation=validation, lowercase=lowercase)
        for name in metrics
    }
    return {name: line for name, line in lines.items() if line}


BY_BATCHES = ("loss", "perplexity", "bits_per_character", "accuracy")
"""The metrics of tokens, which in plain texts depend on batching: on context and on masks."""


def _batches(recipe: Recipe, metric: str) -> str:
    """Return the context of each token for plain texts, or the masking rule for hidden tokens."""
    if metric not in BY_BATCHES or not task_of(recipe).plain_texts:
        return ""
    return f"batches {_as_text(_tree(recipe)['train']['batching'])}"


def _decoding(recipe: Recipe) -> str:
    """Return the decoding with all its fields, and only those rules that have an effect."""
    tree = _tree(recipe)["eval"]["decoding"]
    plain = asdict(NO_RULES)
    rules = {k: v for k, v in tree.get("rules", {}).items() if v and v != plain.get(k)}
    return _as_text({**tree, "rules": rules} if rules else {**tree, "rules": "none"})


def _tree(recipe: Recipe) -> Any:
    return RECIPE.dump_python(recipe, mode="json")


def _as_text(part: Any) -> str:
    """A part of a recipe with all of its fields, such as `beam(beams=5, length_penalty=0.6)`."""
    if not isinstance(part, dict):
        return str(part)
    fields = [f"{name}={_as_text(value)}" for name, value in part.items() if name != "kind"]  # pyright: ignore[reportUnknownVariableType]
    return f"{part.get('kind', '')}({', '.join(fields)})"  # pyright: ignore[reportUnknownMemberType]
