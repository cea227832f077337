"""A study: variants of a recipe, each with several seeds, in a folder that can be gone on with."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from addnorm.atomic import atomic_write
from addnorm.config import config, first_problem
from addnorm.errors import InputError
from addnorm.files import read_file
from addnorm.lab.cell import FIGURES, Figures, Job, last_figures, read_figures, run_cell
from addnorm.lab.checks import comparable
from addnorm.lab.digest import cell_digest
from addnorm.lab.executor import Executor, outcomes
from addnorm.lab.grid import Fields, Variant, reader_of, variants_of, without_twins
from addnorm.lab.markup import finite
from addnorm.lab.matching import FIELD, Match, cost_of, matched
from addnorm.nn.choices import KernelChoices, choices
from addnorm.processor import file_name
from addnorm.runs.imports import imports_of
from addnorm.runs.lock import locked
from addnorm.runs.recipe import RECIPE, Recipe, task_of
from addnorm.runs.settings import LOWER_IS_BETTER, MEASURED

MOST_SEEDS = 10_000
"""The most seeds of a study, none of which would be trained in a lifetime."""
SETTINGS = "study.json"
RESULTS = "results.jsonl"

Watch = Callable[[int, int, str], None]
"""Is told how many cells are done, of how many, and which was the last."""


@config
class StudySettings:
    """What a study began with, and goes on with: `study.json`."""

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
    """The number of seeds of which the budget left these."""


SETTINGS_OF = TypeAdapter(StudySettings)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A variant with a seed. Its folder has the digest of all that decides its result."""

    variant: int
    seed: int
    recipe: Recipe
    digest: str
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Study:
    """A grid of variants and seeds, and where its cells are."""

    folder: Path
    settings: StudySettings
    variants: Sequence[Variant]

    @property
    def metric(self) -> str:
        """The score that decides."""
        return self.settings.metric

    @property
    def n_seeds(self) -> int:
        """How many seeds each variant has."""
        return len(self.settings.seeds)

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller score is the better one."""
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
        """The files and modules that a cell imports: those named, and those of its own parts."""
        return tuple(dict.fromkeys([*self.settings.imports, *imports_of(recipe).values()]))

    def name_of(self, cell: Cell) -> str:
        """What a cell is called where a person reads it."""
        return f"{self.variants[cell.variant].name}, seed {cell.seed}"

    def left_out(self) -> list[Path]:
        """The folders of cells that are none of this study's: of other recipes, seeds or code."""
        ours = {cell.folder.name for cell in self.cells}
        found = (file.parent for file in self.folder.glob(f"cells/*/{FIGURES}"))
        return sorted(folder for folder in found if folder.name not in ours)

    def figures(self) -> dict[int, dict[int, Figures]]:
        """What is measured so far: for each variant, the figures of each finished seed."""
        ended = self._ended()
        found: dict[int, dict[int, Figures]] = {i: {} for i in range(len(self.variants))}
        for cell in self.cells:
            if cell.digest in ended:
                found[cell.variant][cell.seed] = ended[cell.digest]
        return found

    def trained(self) -> dict[int, list[Figures]]:
        """What each variant's cells measured last: finished, diverged, or paused and dropped."""
        found: dict[int, list[Figures]] = {i: [] for i in range(len(self.variants))}
        for cell in self.cells:
            if (figures := last_figures(cell.folder)) is not None:
                found[cell.variant].append(figures)
        return found

    def _ended(self) -> dict[str, Figures]:
        """The figures of the finished cells by digest."""
        found = {cell.digest: read_figures(cell.folder / FIGURES) for cell in self.cells}
        return {digest: figures for digest, figures in found.items() if figures is not None}

    def run(
        self,
        make: Callable[[], Executor],
        at_once: int,
        *,
        cells: Sequence[Cell] | None = None,
        until: int | None = None,
        watch: Watch = lambda *_: None,
    ) -> dict[int, dict[int, Figures]]:
        """Train and measure the cells that are not finished; return the figures of all.

        With `until`, cells pause after that step. Raises what a cell raises: `InputError` for what
        is wrong with its recipe or data, `Interrupted` when it was stopped.
        """
        cells = self.cells if cells is None else cells
        found: dict[int, dict[int, Figures]] = {i: {} for i in range(len(self.variants))}
        jobs = [self._job(cell, until) for cell in cells]
        with locked(self.folder):
            self.write_settings()
            ended = self._ended()
            names = [self.name_of(cell) for cell in cells]
            for index, figures in outcomes(make, run_cell, jobs, at_once, names):
                cell = cells[index]
                found[cell.variant][cell.seed] = figures
                if figures.state != "paused":
                    ended[cell.digest] = figures
                self.write_results(ended)
                done = sum(len(of_seeds) for of_seeds in found.values())
                watch(done, len(cells), self.name_of(cell))
        return found

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
        """Write `study.json`, and the recipe of each variant."""
        self.folder.mkdir(parents=True, exist_ok=True)
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
        """Write `results.jsonl`: a line for each finished cell, in the order of the grid.

        Lines are equal whatever the order in which cells were done; only `seconds` differ.
        """
        lines = [
            json.dumps(self._line(cell, ended[cell.digest]), ensure_ascii=False)
            for cell in self.cells
            if cell.digest in ended
        ]
        atomic_write(self.folder / RESULTS, "".join(f"{line}\n" for line in lines))

    def _line(self, cell: Cell, found: Figures) -> dict[str, Any]:
        variant = self.variants[cell.variant]
        facts: dict[str, Any] = {
            "variant": variant.name,
            "seed": cell.seed,
            "digest": cell.digest,
            "state": found.state,
            "split": found.split,
            "parameters": found.parameters,
            "steps": found.steps,
            "tokens": found.tokens,
            **finite(found.scores),
        }
        facts |= {"problem": found.problem} if found.problem else {}
        return facts | {"seconds": round(found.seconds, 3)}


@dataclass(frozen=True, kw_only=True)
class Design:
    """What a study varies, and how it compares: the values of each field, the number of seeds.

    `match` changes `match_by` so that all variants have as many parameters, or operations a token,
    as the first. Each cell has `threads` threads, on which its last bits depend.
    """

    vary: Mapping[str, Sequence[str]]
    seeds: int = 3
    metric: str | None = None
    question: str = ""
    match: Match | None = None
    match_by: str = FIELD
    threads: int = 1
    imports: tuple[str, ...] = ()
    overrides: Fields = field(default_factory=dict[str, str])


def study_of(recipe: Path | Recipe, folder: Path, design: Design) -> Study:
    """The study of a recipe in `folder`; one that began there goes on with its kernels.

    Raises `InputError` if fewer than two variants can be trained, for a metric that the task has
    not, and for a folder with something else in it.
    """
    if not 1 <= design.seeds <= MOST_SEEDS:
        raise InputError(f"`seeds = {design.seeds}`: must be at least 1 and at most {MOST_SEEDS}")
    read = reader_of(recipe, design.overrides)
    variants = variants_of(read, design.vary)
    if design.match is not None:
        variants = matched(read, variants, cost_of(design.match, variants), design.match_by)
    variants = without_twins(variants)
    first = variants[0].recipe
    assert first is not None
    if sum(one.recipe is not None for one in variants) < 2:
        reasons = "; ".join(f"{one.name}: {one.refused}" for one in variants if one.refused)
        why = reasons or "`vary` gives one value: give two or more, with commas between"
        raise InputError(f"nothing is left to compare {variants[0].name} with: {why}")
    task = task_of(first)
    metric = comparable(variants, task, design.metric, first.eval.metric or MEASURED[task][0])
    earlier = read_settings(folder)
    if earlier is not None and {*earlier.vary} != {*design.vary}:
        fields = " and ".join(earlier.vary)
        raise InputError(f"{folder}: a study of {fields} is there: give another `out`")
    settings = StudySettings(
        question=design.question,
        recipe=str(recipe) if isinstance(recipe, Path) else "made in Python",
        vary={name: tuple(values) for name, values in design.vary.items()},
        seeds=tuple(first.train.seed + n for n in range(design.seeds)),
        metric=metric,
        threads=design.threads,
        kernels=_kernels(design.threads) if earlier is None else earlier.kernels,
        imports=design.imports,
    )
    return Study(folder=folder, settings=settings, variants=variants)


def _kernels(threads: int) -> KernelChoices:
    """The kernels of this machine for as many threads as a cell has."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return choices()
    finally:
        torch.set_num_threads(before)


def read_settings(folder: Path) -> StudySettings | None:
    """The settings of the study in `folder`; None if there is none yet.

    Raises `InputError` for a damaged file, or for a folder with something else in it.
    """
    file = folder / SETTINGS
    if not file.is_file():
        if folder.is_dir() and any(not one.name.startswith(".") for one in folder.iterdir()):
            raise InputError(f"{folder}: no study, and not empty: name a new folder")
        return None
    try:
        return SETTINGS_OF.validate_json(read_file(file))
    except ValidationError as error:
        raise InputError(f"{file}: {first_problem(error)}") from error


def seeded(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with another seed for weights, order of data and dropout."""
    return replace(recipe, train=replace(recipe.train, seed=seed))
