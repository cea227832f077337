"""What a figure was measured with: two figures of a metric compare only where this is the same."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from addnorm.data import lowercases
from addnorm.generate.rules import NO_RULES
from addnorm.metrics.scores import MEASURES, sacrebleu_signatures
from addnorm.runs.recipes.recipe import RECIPE, Recipe, task_of
from addnorm.tasks.eval_config import MetricName
from addnorm.tasks.registry import TASKS

MARKS = "case and punctuation count"


def measured_with(
    recipe: Recipe, metric: str, *, validation: bool = False, lowercase: bool = False
) -> str:
    """What a figure of `metric` was measured with, as one line; empty where nothing can differ.

    It names the package and its settings, the decoding by which texts were written, and in a
    `validation` during training how many of them. The same recipe gives the same line, so a figure
    that is kept with its line can be compared with another only where the lines are equal. Data
    given in Python are in no recipe: `lowercase` says then whether they are in lower case.
    """
    parts = [_definition(recipe, metric)]
    if metric in WRITTEN or (metric == "exact" and task_of(recipe) == "translation"):
        parts.append(f"written by {_decoding(recipe)}")
        if validation:
            parts.append(f"first {recipe.eval.valid_examples:,} examples")
    if any(parts) and (lowercase or lowercases(recipe.data)):
        parts.append("texts in lower case")
    return "; ".join(part for part in parts if part)


def main_metric(recipe: Recipe) -> MetricName:
    """The metric that picks the best weights."""
    return recipe.eval.metric or TASKS[task_of(recipe)].metrics[0]


def measure_of(recipe: Recipe, valid_data: str) -> str:
    """The main metric with all that moves its scale, as of the digest of the validation data.

    Two validations during training compare only where it is the same.
    """
    metric = main_metric(recipe)
    with_what = measured_with(recipe, metric, validation=True)
    return f"{metric}{f' ({with_what})' if with_what else ''} of validation data {valid_data[:12]}"


def lines_of(
    recipe: Recipe, metrics: Iterable[str], *, validation: bool = False, lowercase: bool = False
) -> dict[str, str]:
    """What each of some metrics is measured with, of those of which something can differ."""
    lines = {
        name: measured_with(recipe, name, validation=validation, lowercase=lowercase)
        for name in metrics
    }
    return {name: line for name, line in lines.items() if line}


def _definition(recipe: Recipe, metric: str) -> str:
    """How the metric itself is defined."""
    by_task = DEFINITIONS.get((metric, task_of(recipe)))
    definition = by_task or DEFINITIONS.get((metric, None))
    return "" if definition is None else definition(recipe)


def _bleu(recipe: Recipe) -> str:
    return f"sacrebleu {sacrebleu_signatures(recipe.eval.bleu_tokenize)['bleu']}"


def _chrf(recipe: Recipe) -> str:
    return f"sacrebleu {sacrebleu_signatures(recipe.eval.bleu_tokenize)['chrf']}"


def _batches(recipe: Recipe) -> str:
    """What stands before each token, or which tokens are hidden, in plain texts."""
    if not TASKS[task_of(recipe)].plain_texts:
        return ""
    return f"batches {_as_text(_tree(recipe)['train']['batching'])}"


def _package(name: str, text: str) -> Callable[[Recipe], str]:
    """A definition that begins with a package and its version, where it is installed."""

    def definition(_: Recipe) -> str:
        try:
            return f"{name} {version(name)}: {text}"
        except PackageNotFoundError:
            return f"{name}: {text}"

    return definition


def _plain(text: str) -> Callable[[Recipe], str]:
    return lambda _: text


_ROUGE = _package("rouge-score", "F1 on stems of lower-cased words, against the best reference")
_LEAD = _package("rouge-score", "the source's first sentence, otherwise as the summaries")
_ENTITIES = _package("seqeval", "entities by type and span, as conlleval, micro-averaged")
_SURFACES = _package("seqeval", "unique surface forms of entities; case counts")

DEFINITIONS: dict[tuple[str, str | None], Callable[[Recipe], str]] = {
    ("bleu", None): _bleu,
    ("chrf", None): _chrf,
    ("exact", "translation"): _plain(f"whole texts; {MARKS}"),
    ("exact", "multi_label"): _plain("all labels, of a probability above 0.5"),
    ("wer", None): _package("jiwer", f"words between white space; {MARKS}"),
    ("cer", None): _package("jiwer", f"characters; {MARKS}"),
    **{(name, None): _ROUGE for name in MEASURES},
    **{(f"lead_{name}", None): _LEAD for name in MEASURES},
    ("f1", "classification"): _plain("macro, over the classes that occur"),
    ("f1", "tagging"): _ENTITIES,
    ("precision", None): _ENTITIES,
    ("recall", None): _ENTITIES,
    **{(f"surface_{name}", None): _SURFACES for name in ("f1", "precision", "recall")},
    ("accuracy", "tagging"): _plain("words"),
    ("accuracy", "masked_language"): _batches,
    ("accuracy", "denoising"): _batches,
    ("f1_micro", None): _plain("labels of a probability above 0.5"),
    ("f1_macro", None): _plain("labels of a probability above 0.5, of those that occur"),
    ("loss", None): _batches,
    ("perplexity", None): _batches,
    ("bits_per_character", None): _batches,
}
"""The definition of each metric, of one task or (None) of all."""

WRITTEN = ("bleu", "chrf", "wer", "cer", *MEASURES)
"""The metrics of texts that a model writes, besides `exact`."""


def _decoding(recipe: Recipe) -> str:
    """The decoding with all of its fields, and of its rules with those that do something."""
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
