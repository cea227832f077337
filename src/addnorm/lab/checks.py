"""What is wrong with the variants of a study, found before anything is trained."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from addnorm.errors import InputError, choices
from addnorm.lab.grid import Variant
from addnorm.runs.recipe import RECIPE, Recipe
from addnorm.runs.settings import MEASURED, MetricName
from addnorm.runs.task import LABELLED
from addnorm.runs.training import Prepared

PER_TOKEN = ("loss", "perplexity")
"""Scores of tokens, which say nothing beside those of other tokens."""

PER_CHARACTER = "bits_per_character"
"""The score of a language model that does not depend on its tokens."""


def prepared(variants: Sequence[Variant], say: Callable[[str], None]) -> list[Variant]:
    """The variants, each with its data read and its model built once; what fails is refused.

    Variants that read the same data into the same model are tried once. Raises `InputError` if the
    first variant fails, with which all others are compared.
    """
    problems: dict[str, str] = {}
    found: list[Variant] = []
    for variant in variants:
        if variant.recipe is None:
            found.append(variant)
            continue
        same = _reads(variant.recipe)
        if same not in problems:
            say(f"checking {variant.name}")
            problems[same] = _problem(variant.recipe)
        problem = problems[same]
        if problem and not found:
            raise InputError(f"{variant.name}, the first variant: {problem}")
        found.append(replace(variant, recipe=None, refused=problem) if problem else variant)
    return found


def _problem(recipe: Recipe) -> str:
    try:
        Prepared(recipe)
    except InputError as error:
        return str(error)
    return ""


def _reads(recipe: Recipe) -> str:
    """All in a recipe on which it depends whether training can begin."""
    tree: dict[str, Any] = RECIPE.dump_python(recipe, mode="json")
    tree["train"] = {name: tree["train"].get(name) for name in ("batching", "start")}
    return json.dumps(tree, sort_keys=True)


def comparable(variants: Sequence[Variant], task: str, metric: str | None, usual: str) -> str:
    """The score by which variants are compared: `metric`, or the `usual` one of their task.

    Language models of different tokens are compared by bits per character. Raises `InputError` for
    a score of tokens where these differ, and for one that the task has not.
    """
    known: tuple[str, ...] = MEASURED[task]  # pyright: ignore[reportArgumentType]
    known += (PER_CHARACTER,) if task == "language" else ()
    if metric is not None and metric not in known:
        raise InputError(f"`metric = {metric}`: not measured for {task}.{choices(metric, known)}")
    if task in LABELLED or not tokens_differ(variants):
        return metric or usual
    if metric is None and task == "language":
        return PER_CHARACTER
    per_token: tuple[MetricName | str, ...] = PER_TOKEN
    if task in ("masked_language", "denoising"):
        per_token = known
    if (metric or usual) in per_token:
        others = [name for name in known if name not in per_token]
        hint = f": take `metric` = {' or '.join(others)}" if others else ""
        raise InputError(
            f"the variants have different tokens, and the {metric or usual} of one token says "
            f"nothing beside that of another{hint}"
        )
    return metric or usual


def tokens_differ(variants: Sequence[Variant]) -> bool:
    """Whether what is a token differs: the tokenizer, or what it is learnt from."""
    found: set[str] = set()
    for variant in variants:
        if variant.recipe is not None:
            tree = RECIPE.dump_python(variant.recipe, mode="json")
            learnt = tree.get("tokenizer")
            start = tree["train"].get("start")
            found.add(json.dumps([learnt, tree["data"] if learnt else None, start], sort_keys=True))
    return len(found) > 1
