"""`addnorm.lab.study`: a study from Python, and its results as rows for other libraries."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, get_args

from rich.console import Console

from addnorm.errors import InputError, choices
from addnorm.lab.studies.ablation import (
    check_options,
    checked,
    costs_of,
    run_study,
    within_budget,
)
from addnorm.lab.studies.options import Match, StudyOptions
from addnorm.lab.studies.report import markdown, write_report
from addnorm.lab.studies.study import RESULTS, study_of
from addnorm.lab.studies.summary import Summary
from addnorm.lab.studies.variants import toml_value, without_repeats
from addnorm.runs.inference.results import check_choice
from addnorm.runs.recipes.custom_parts import import_parts
from addnorm.runs.recipes.recipe import Recipe


@dataclass(frozen=True, repr=False)
class StudyTable:
    """The results of a study.

    Attributes
    ----------
    cells
        A dictionary for each finished variant and seed: `variant`, `seed`, `state`, scores,
        `parameters`, `tokens`, `seconds`, and the `problem` of one that met NaN or an infinite
        number. All have the same names, with None for missing values.
        `pandas.DataFrame(table.cells)` and `polars.DataFrame(table.cells)` take it as it is.
    variants
        A dictionary for each variant, in the same form: mean, interval, difference to the first,
        interval over test examples, effect, p, verdict; how many seeds `diverged` or are `missing`,
        and why it was `dropped`.
    text
        The report as Markdown, which notebooks show.
    folder
        The folder with the runs, the report and the pictures.
    """

    cells: Sequence[Mapping[str, Any]]
    variants: Sequence[Mapping[str, Any]]
    text: str
    folder: Path

    def __repr__(self) -> str:
        n, cells = len(self.variants), len(self.cells)
        return f"<StudyTable of {n} variants, {cells} cells: {self.folder}>"

    def _repr_markdown_(self) -> str:
        return self.text


def study(
    recipe: str | PathLike[str] | Recipe,
    *,
    vary: Mapping[str, Sequence[Any]],
    folder: str | PathLike[str] | None = None,
    imports: str | Sequence[str] = (),
    progress: bool = True,
    **options: Any,
) -> StudyTable:
    """Train every combination of some values with several seeds, and compare them with the first.

    `vary` has the values of each field, as text in a recipe, as numbers, or as configurations:
    `{"model.norm": [LayerNormConfig(), "rmsnorm"]}`. The study is kept in `folder`, by default a
    new temporary one; called again with the same folder, what is finished is not trained again.
    Cells are trained in other processes, so a script calls this below `if __name__ ==
    "__main__":`. Custom parts are named by their files in `imports`. `progress` shows a bar.
    `options` are the fields of `StudyOptions`, which are those of `addnorm ablate`. Raises
    `InputError` as `addnorm ablate` does, and for a refused variant, which that command reports
    and leaves out.
    """
    source, fields_varied, chosen = _source(recipe), _varied(vary), _options(options)
    files = (imports,) if isinstance(imports, str) else tuple(imports)
    import_parts(files)
    at_once = check_options(chosen)
    console = Console(stderr=True, quiet=not progress)
    place = Path(folder or mkdtemp(prefix="study-"))
    made = checked(study_of(source, place, fields_varied, chosen, imports=files), console)
    for variant in made.variants:
        if variant.refused:
            raise InputError(f"{variant.name}: {variant.refused}")
    if chosen.budget is not None:
        costs = costs_of(made, chosen.threads, console)
        made = within_budget(made, costs, chosen.budget, at_once, console)
    summary = run_study(made, chosen, at_once, console)
    write_report(made, summary)
    lines = (made.folder / RESULTS).read_text("utf-8").splitlines()
    text = markdown(made, summary, "en", [])
    return StudyTable(cell_rows(lines), variant_rows(summary), text, made.folder)


def _options(given: Mapping[str, Any]) -> StudyOptions:
    """The options of a study. Raises `InputError` for an unknown name, or a wrong type."""
    names = [field.name for field in fields(StudyOptions)]
    for name in given:
        if name not in names:
            valid = [*names, "vary", "folder", "imports", "progress"]
            raise InputError(f"study() has no argument {name}.{choices(name, valid)}")
    options = StudyOptions(**given)
    for name, n in (("seeds", options.seeds), ("threads", options.threads)):
        if type(n) is not int:
            raise InputError(f"{name} = {n!r}: must be an integer, such as 3")
    if options.match is not None:
        check_choice("match", options.match, get_args(Match))
    return options


def _source(recipe: Any) -> Path | Recipe:
    """The recipe, or the file that it is in. Raises `InputError` if it is neither."""
    if isinstance(recipe, Recipe):
        return recipe
    if not isinstance(recipe, str | PathLike):
        raise InputError(f"recipe = {recipe!r}: the path of a recipe, or a Recipe")
    file = Path(recipe)
    if not file.is_file():
        raise InputError(f"{file}: no such recipe")
    return file


def _varied(vary: Any) -> dict[str, list[str]]:
    if not isinstance(vary, Mapping):
        raise InputError(f"vary = {vary!r}: a dictionary of fields and their values")
    of_fields: Mapping[str, Any] = vary
    return {name: _values(name, values) for name, values in of_fields.items()}


def _values(name: str, values: Any) -> list[str]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"vary: {name} = {values!r} is one value: give a list of them")
    texts = [toml_value(value) for value in values]
    if not texts:
        raise InputError(f"vary: {name} has no values: give two or more")
    return without_repeats(texts, f"vary: {name}")


def cell_rows(lines: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of `results.jsonl`, with the same names in each and None for missing values.

    The numbers of a column have one type, for libraries that take it from the first row.
    """
    cells: list[dict[str, Any]] = [json.loads(line) for line in lines]
    names = dict.fromkeys(name for cell in cells for name in cell if name != "problem")
    return [
        {name: cell.get(name) for name in names} | {"problem": cell.get("problem", "")}
        for cell in cells
    ]


def variant_rows(summary: Summary) -> list[dict[str, Any]]:
    """A flat dictionary for each variant, with None for missing values."""
    rows: list[dict[str, Any]] = []
    for row in summary.rows:
        difference, mean, examples = row.difference, row.mean, row.examples
        rows.append(
            {
                "variant": row.name,
                "seeds": len(row.values),
                summary.metric: None if mean is None else mean.mean,
                "low": None if mean is None else mean.low,
                "high": None if mean is None else mean.high,
                "difference": None if difference is None else difference.interval.mean,
                "difference_low": None if difference is None else difference.interval.low,
                "difference_high": None if difference is None else difference.interval.high,
                "examples_low": None if examples is None else examples.low,
                "examples_high": None if examples is None else examples.high,
                "effect": None if difference is None else difference.effect,
                "p": None if difference is None else difference.adjusted,
                "verdict": None if difference is None else difference.verdict,
                "better": summary.better(row),
                "diverged": row.diverged,
                "missing": row.missing,
                "dropped": row.dropped,
                "parameters": row.parameters,
                "seconds": row.seconds,
            }
        )
    return rows
