"""A study: variants of a recipe, each with several seeds, in a folder that can be resumed."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from addnorm.atomic import atomic_write, make_folder
from addnorm.config import config, first_problem
from addnorm.errors import InputError
from addnorm.files import read_file
from addnorm.lab.digest import cell_digest
from addnorm.lab.executor import Executor, Watch, outcomes
from addnorm.lab.markup import finite
from addnorm.lab.studies.cell import (
    FIGURES,
    Figures,
    Job,
    figures_of,
    last_figures,
    read_figures,
    run_cell,
)
from addnorm.lab.studies.matching import cost_of, matched
from addnorm.lab.studies.options import DEFAULTS, StudyOptions
from addnorm.lab.studies.variants import (
    Fields,
    Variant,
    check_several,
    comparable,
    reader_of,
    variants_of,
    without_twins,
)
from addnorm.machine import file_name
from addnorm.nn.choices import KernelChoices, choices
from addnorm.runs.files.lock import locked
from addnorm.runs.recipes.custom_parts import imports_of
from addnorm.runs.recipes.recipe import RECIPE, Recipe, task_of
from addnorm.tasks.eval_config import LOWER_IS_BETTER

MOST_SEEDS = 10_000
"""The largest number of seeds of a study."""
SETTINGS = "study.json"
RESULTS = "results.jsonl"


@config
class StudySettings:
    """The settings with which a study was started and is resumed: `study.json`."""

    question: str
    recipe: str
    vary: Mapping[str, tuple[str, ...]]
    seeds: tuple[int, ...]
    metric: str
    threads: int
    kernels: KernelChoices
    imports: tuple[str, ...] = ()
    budget: str | None = None
    wanted: int | None = None
    """The number of seeds before the budget reduced them."""


SETTINGS_OF = TypeAdapter(StudySettings)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A variant with a seed, and its folder, whose name contains a digest of all inputs."""

    variant: int
    seed: int
    recipe: Recipe
    digest: str
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Study:
    """The variants and seeds of a study, and the folder of its cells."""

    folder: Path
    settings: StudySettings
    variants: Sequence[Variant]

    @property
    def metric(self) -> str:
        """The score that decides between variants."""
        return self.settings.metric

    @property
    def n_seeds(self) -> int:
        """The number of seeds of each variant."""
        return len(self.settings.seeds)

    @property
    def lower_is_better(self) -> bool:
        """Return whether a smaller score is better."""
        return self.metric in (*LOWER_IS_BETTER, "perplexity", "bits_per_character")

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells: the first seed of every variant, then the second, and so on."""
        return [
            self._cell(index, seed)
            for seed in self.settings.seeds
            for index, variant in enumerate(self.variants)
            if variant.recipe is not None
        ]

    def _cell(self, index: int, seed: int) -> Cell:
        variant = self.variants[index]
        assert variant.recipe is not None
        recipe = seeded(variant.recipe, seed)
        tree = RECIPE.dump_python(recipe, mode="json")
        settings = self.settings
        imports = self._imports(recipe)
        digest = cell_digest(tree, settings.threads, settings.kernels, imports)
        name = file_name(variant.name)[:60].strip("-") or "variant"
        folder = self.folder / "cells" / f"{name}-seed-{seed}-{digest}"
        return Cell(variant=index, seed=seed, recipe=recipe, digest=digest, folder=folder)

    def _imports(self, recipe: Recipe) -> tuple[str, ...]:
        """The files and modules that a cell imports: named ones, and those of custom parts."""
        return tuple(dict.fromkeys([*self.settings.imports, *imports_of(recipe).values()]))

    def name_of(self, cell: Cell) -> str:
        """The name of a cell for messages."""
        return f"{self.variants[cell.variant].name}, seed {cell.seed}"

    def left_out(self) -> list[Path]:
        """The folders of cells from other recipes, seeds, data or code."""
        names = {cell.folder.name for cell in self.cells}
        folders = (file.parent for file in self.folder.glob(f"cells/*/{FIGURES}"))
        return sorted(folder for folder in folders if folder.name not in names)

    def figures(self) -> dict[int, dict[int, Figures]]:
        """Return the figures so far, by variant and finished seed."""
        ended = self._ended()
        figures: dict[int, dict[int, Figures]] = {i: {} for i in range(len(self.variants))}
        for cell in self.cells:
            if cell.digest in ended:
                figures[cell.variant][cell.seed] = ended[cell.digest]
        return figures

    def trained(self) -> dict[int, list[Figures]]:
        """The last figures of each variant's cells: finished, diverged, or paused and dropped."""
        trained: dict[int, list[Figures]] = {i: [] for i in range(len(self.variants))}
        for cell in self.cells:
            if (figures := last_figures(cell.folder)) is not None:
                trained[cell.variant].append(figures)
        return trained

    def _ended(self) -> dict[str, Figures]:
        """The figures of the finished cells by digest."""
        files = {cell.digest: cell.folder / FIGURES for cell in self.cells}
        return {
            digest: figures for digest, file in files.items() if (figures := read_figures(file))
        }

    def run(
        self,
        make: Callable[[], Executor],
        at_once: int,
        *,
        cells: Sequence[Cell] | None = None,
        until: int | None = None,
        watch: Watch = lambda *_: None,
    ) -> dict[int, dict[int, Figures]]:
        """Train and measure the cells without figures; return the figures of all cells.

        With `until`, cells pause after that step. Raises what a cell raises: `InputError` for a
        mistake in its recipe or data, `Interrupted` when it was stopped.
        """
        cells = self.cells if cells is None else cells
        results: dict[int, dict[int, Figures]] = {i: {} for i in range(len(self.variants))}
        left: list[Cell] = []
        with locked(self.folder):
            self.write_settings()
            ended = self._ended()
            for cell in cells:
                if (figures := figures_of(cell.folder, until)) is None:
                    left.append(cell)
                else:
                    results[cell.variant][cell.seed] = figures
            self.write_results(ended)
            jobs = [self._job(cell, until) for cell in left]
            names = [self.name_of(cell) for cell in left]
            done = len(cells) - len(left)
            for index, figures in outcomes(make, run_cell, jobs, at_once, names):
                cell, done = left[index], done + 1
                results[cell.variant][cell.seed] = figures
                if figures.state != "paused":
                    ended[cell.digest] = figures
                self.write_results(ended)
                watch(done, len(cells), names[index])
        return results

    def _job(self, cell: Cell, until: int | None) -> Job:
        settings = self.settings
        return Job(
            recipe=RECIPE.dump_python(cell.recipe, mode="json"),
            folder=str(cell.folder.resolve()),
            directory=str(Path.cwd()),
            threads=settings.threads,
            kernels=TypeAdapter(KernelChoices).dump_python(settings.kernels, mode="json"),
            imports=self._imports(cell.recipe),
            until=until,
        )

    def write_settings(self) -> None:
        """Write `study.json`, and each variant's recipe."""
        make_folder(self.folder)
        facts = SETTINGS_OF.dump_python(self.settings, mode="json")
        atomic_write(self.folder / SETTINGS, json.dumps(facts, indent=1, ensure_ascii=False))
        recipes = self.folder / "recipes"
        recipes.mkdir(parents=True, exist_ok=True)
        for number, variant in enumerate(self.variants, start=1):
            if variant.recipe is not None:
                tree = RECIPE.dump_python(variant.recipe, mode="json")
                file = recipes / f"{number}-{file_name(variant.name)[:60].strip('-')}.json"
                atomic_write(file, json.dumps(tree, indent=1, ensure_ascii=False))

    def write_results(self, ended: Mapping[str, Figures]) -> None:
        """Write `results.jsonl`: a line for each finished cell, in grid order.

        The lines do not depend on the order in which cells were trained; only `seconds` differ.
        """
        lines = [
            json.dumps(self._line(cell, ended[cell.digest]), ensure_ascii=False)
            for cell in self.cells
            if cell.digest in ended
        ]
        atomic_write(self.folder / RESULTS, "".join(f"{line}\n" for line in lines))

    def _line(self, cell: Cell, figures: Figures) -> dict[str, Any]:
        variant = self.variants[cell.variant]
        facts: dict[str, Any] = {
            "variant": variant.name,
            "seed": cell.seed,
            "digest": cell.digest,
            "state": figures.state,
            "split": figures.split,
            "parameters": figures.parameters,
            "steps": figures.steps,
            "tokens": figures.tokens,
            **finite(figures.scores),
        }
        facts |= {"problem": figures.problem} if figures.problem else {}
        return facts | {"seconds": round(figures.seconds, 3)}


def study_of(
    recipe: Path | Recipe,
    folder: Path,
    vary: Mapping[str, Sequence[str]],
    options: StudyOptions = DEFAULTS,
    *,
    imports: Sequence[str] = (),
    overrides: Fields | None = None,
) -> Study:
    """Return the study of a recipe in `folder`; a resumed study keeps its kernels.

    Raises `InputError` if fewer than two variants can be trained, for a metric that the task does
    not have, and for a folder with other content.
    """
    if not 1 <= options.seeds <= MOST_SEEDS:
        raise InputError(f"`seeds = {options.seeds}`: must be at least 1 and at most {MOST_SEEDS}")
    reader = reader_of(recipe, overrides)
    variants = variants_of(reader, vary)
    if options.match is not None:
        cost = cost_of(options.match, variants)
        variants = matched(reader, variants, cost, options.match_by)
    variants = without_twins(variants)
    first = variants[0].recipe
    assert first is not None
    check_several(variants, "`vary` gives one value: give two or more, with commas between")
    task = task_of(first)
    metric = comparable(variants, task, options.metric, first.eval.metric or task.metrics[0])
    earlier = read_settings(folder)
    if earlier is not None and {*earlier.vary} != {*vary}:
        fields = " and ".join(earlier.vary)
        raise InputError(f"{folder}: a study of {fields} is there: give another `out`")
    settings = StudySettings(
        question=options.question,
        recipe=str(recipe) if isinstance(recipe, Path) else "made in Python",
        vary={name: tuple(values) for name, values in vary.items()},
        seeds=tuple(first.train.seed + n for n in range(options.seeds)),
        metric=metric,
        threads=options.threads,
        kernels=_kernels(options.threads) if earlier is None else earlier.kernels,
        imports=tuple(imports),
    )
    return Study(folder=folder, settings=settings, variants=variants)


def _kernels(threads: int) -> KernelChoices:
    """The fastest kernels on this machine with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return choices()
    finally:
        torch.set_num_threads(before)


def read_settings(folder: Path) -> StudySettings | None:
    """Read the settings of the study in `folder`; None for a new folder.

    Raises `InputError` for a damaged file, or for a folder with other content.
    """
    file = folder / SETTINGS
    if not file.is_file():
        if folder.is_dir() and any(not file.name.startswith(".") for file in folder.iterdir()):
            raise InputError(f"{folder}: no study, and not empty: name a new folder")
        return None
    try:
        return SETTINGS_OF.validate_json(read_file(file))
    except ValidationError as error:
        raise InputError(f"{file}: {first_problem(error)}") from error


def seeded(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with another seed for weights, data order and dropout."""
    return replace(recipe, train=replace(recipe.train, seed=seed))
