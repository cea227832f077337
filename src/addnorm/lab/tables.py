"""`addnorm.lab.study`: a study from Python, and its results as rows for other libraries."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypedDict, Unpack, get_args

from rich.console import Console

from addnorm.errors import InputError, known_keywords
from addnorm.lab.ablation import Options, checked, run_study, workers
from addnorm.lab.grid import toml_value
from addnorm.lab.matching import FIELD, Match
from addnorm.lab.report import markdown, write_report
from addnorm.lab.studies import RESULTS, Design, study_of
from addnorm.lab.summary import Summary
from addnorm.runs.imports import import_parts
from addnorm.runs.recipe import Recipe
from addnorm.runs.types import check_choice


class StudyOptions(TypedDict, total=False):
    """The other options of `addnorm ablate`; `progress` shows a bar, as is usual."""

    metric: str | None
    match: Match | None
    match_by: str
    threads: int
    imports: str | Sequence[str]
    progress: bool
    halving: bool
    processes: int | None
    scheduler: str | None


@dataclass(frozen=True, repr=False)
class StudyTable:
    """The results of a study.

    Attributes
    ----------
    cells
        A dictionary for each variant and seed that has ended: `variant`, `seed`, `state`, scores,
        `parameters`, `tokens`, `seconds`, and the `problem` of one that met a number that is not
        finite. All have the same names, with None for what there is not.
        `pandas.DataFrame(table.cells)` and `polars.DataFrame(table.cells)` take it as it is.
    variants
        A dictionary for each variant, taken likewise: mean, interval, difference to the first,
        interval over test examples, effect, p, verdict; how many seeds `diverged` or are `missing`,
        and why it was `dropped`.
    text
        The report as Markdown, which notebooks show.
    folder
        Where the runs, the report and the pictures are.
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


@known_keywords
def study(
    recipe: str | PathLike[str] | Recipe,
    *,
    vary: Mapping[str, Sequence[Any]],
    seeds: int = 3,
    folder: str | PathLike[str] | None = None,
    **options: Unpack[StudyOptions],
) -> StudyTable:
    """Train every combination of some values with several seeds, and compare them with the first.

    `vary` has the values of each field, as text in a recipe, as numbers, or as configurations:
    `{"model.norm": [LayerNormConfig(), "rmsnorm"]}`. The study is kept in `folder`, by default a
    new temporary one; called again with the same folder, what is finished is not trained again.
    Cells are trained in other processes, so a script calls this below `if __name__ ==
    "__main__":`. Parts of your own are named by their files in `imports`. Raises `InputError` as
    `addnorm ablate` does, and for a variant that is refused, which that reports and leaves out.
    """
    source = _source(recipe)
    for name, n in (("seeds", seeds), ("threads", options.get("threads", 1))):
        if type(n) is not int:
            raise InputError(f"{name} = {n!r}: how many there are, a whole number such as 3")
    given = options.get("imports", ())
    imports = (given,) if isinstance(given, str) else tuple(given)
    import_parts(imports)
    if (match := options.get("match")) is not None:
        check_choice("match", match, get_args(Match))
    design = Design(
        vary=_varied(vary),
        seeds=seeds,
        metric=options.get("metric"),
        match=match,
        match_by=options.get("match_by", FIELD),
        threads=options.get("threads", 1),
        imports=imports,
    )
    chosen = Options(
        halving=options.get("halving", False),
        processes=options.get("processes"),
        scheduler=options.get("scheduler"),
    )
    at_once = workers(chosen, design.threads)
    console = Console(stderr=True, quiet=not options.get("progress", True))
    made = study_of(source, Path(folder or mkdtemp(prefix="study-")), design)
    made = checked(made, console)
    for variant in made.variants:
        if variant.refused:
            raise InputError(f"{variant.name}: {variant.refused}")
    summary = run_study(made, chosen, at_once, console)
    write_report(made, summary)
    lines = (made.folder / RESULTS).read_text("utf-8").splitlines()
    text = markdown(made, summary, "en", [])
    return StudyTable(cell_rows(lines), variant_rows(summary), text, made.folder)


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
    fields: Mapping[str, Any] = vary
    return {name: _values(name, values) for name, values in fields.items()}


def _values(name: str, values: Any) -> list[str]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"vary: {name} = {values!r} is one value: give a list of them")
    found = [toml_value(value) for value in values]
    if not found:
        raise InputError(f"vary: {name} has no values: give two or more")
    if twice := next((one for one in found if found.count(one) > 1), None):
        raise InputError(f"vary: {name}: {twice} is there twice")
    return found


def cell_rows(lines: Sequence[str]) -> list[dict[str, Any]]:
    """The lines of `results.jsonl` with the same names in each; None stands for what there is not.

    Numbers of one column are of one type, for libraries that judge it by the first of them.
    """
    cells: list[dict[str, Any]] = [json.loads(line) for line in lines]
    names = dict.fromkeys(name for cell in cells for name in cell if name != "problem")
    return [
        {name: cell.get(name) for name in names} | {"problem": cell.get("problem", "")}
        for cell in cells
    ]


def variant_rows(summary: Summary) -> list[dict[str, Any]]:
    """A flat dictionary for each variant; None stands for what there is not."""
    rows: list[dict[str, Any]] = []
    for row in summary.rows:
        found, mean, examples = row.difference, row.mean, row.examples
        rows.append(
            {
                "variant": row.name,
                "seeds": len(row.values),
                summary.metric: None if mean is None else mean.mean,
                "low": None if mean is None else mean.low,
                "high": None if mean is None else mean.high,
                "difference": None if found is None else found.interval.mean,
                "difference_low": None if found is None else found.interval.low,
                "difference_high": None if found is None else found.interval.high,
                "examples_low": None if examples is None else examples.low,
                "examples_high": None if examples is None else examples.high,
                "effect": None if found is None else found.effect,
                "p": None if found is None else found.adjusted,
                "verdict": None if found is None else found.verdict,
                "better": summary.better(row),
                "diverged": row.diverged,
                "missing": row.missing,
                "dropped": row.dropped,
                "parameters": row.parameters,
                "seconds": row.seconds,
            }
        )
    return rows
