"""`addnorm ablate`: variants of a recipe with several seeds, compared with intervals."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from addnorm.cli.fields import fields_given
from addnorm.cli.imports import Imports, import_named
from addnorm.errors import InputError
from addnorm.files import check_recipe_file

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Varying = Annotated[list[str] | None, Parameter(negative="", consume_multiple=False)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Comparing:
    """How the variants are compared.

    Parameters
    ----------
    seeds
        How many seeds each variant has: that of the recipe, and the next ones.
    metric
        The score that decides; by default the one by which the recipe selects its best weights.
    match
        Keep all variants within 2 % of the first, in parameters or in operations a token.
    match_by
        The field that is changed for it.
    question
        The title of the report.
    """

    seeds: int = 3
    metric: str | None = None
    match: Literal["parameters", "flops"] | None = None
    match_by: str = "model.feedforward.d_ff"
    question: str = ""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Running:
    """Where and how long the study runs.

    Parameters
    ----------
    budget
        A time such as 30m or 2h: as many seeds as fit, judged by a few measured steps.
    halving
        Drop variants that are clearly worse after a quarter or half of the steps.
    processes
        How many are trained at once; by default the cores divided by the threads.
    threads
        The threads that each is trained with, on which its last bits depend.
    scheduler
        The address of a Dask scheduler, such as tcp://host:8786, whose workers train instead.
    dry_run
        Only print the variants, what they cost and the time to expect.
    """

    budget: str | None = None
    halving: Flag = False
    processes: int | None = None
    threads: int = 1
    scheduler: str | None = None
    dry_run: Flag = False


def ablate(
    recipe: Path,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    vary: Varying = None,
    out: Path | None = None,
    comparing: Comparing = Comparing(),
    running: Running = Running(),
    imports: Imports = (),
) -> None:
    """Train variants of a recipe with several seeds each, and say which is better, if any.

    Every combination of the values that vary is compared with the first one, seed by seed: the mean
    difference with its 95 % interval, the effect, a p-value corrected for all comparisons, or
    "undecided" and the number of seeds that would decide it. The same command again goes on where
    it was. Example: `addnorm ablate my.toml --vary model.norm=layernorm,rmsnorm --seeds 5`.

    Parameters
    ----------
    recipe
        The TOML file that varies.
    overrides
        Fields to replace in all variants, as `--table.field value`.
    vary
        A field and its values, written as in a recipe: `model.position=rotary,alibi`. May be given
        again, for every combination.
    out
        The study's folder; by default `studies/` and the recipe's name.
    """
    fields = fields_given(overrides)
    import_named(imports)
    if recipe.is_dir():
        raise InputError(f"{recipe}: a folder: ablate takes a recipe, and --out {recipe}")
    check_recipe_file(recipe)
    from addnorm.cli.terminal import console
    from addnorm.lab.ablation import Options, ablate_recipe
    from addnorm.lab.grid import read_vary
    from addnorm.lab.studies import Design

    design = Design(
        vary=read_vary(vary or []),
        seeds=comparing.seeds,
        metric=comparing.metric,
        question=comparing.question,
        match=comparing.match,
        match_by=comparing.match_by,
        threads=running.threads,
        imports=tuple(imports),
        overrides=fields,
    )
    options = Options(
        budget=running.budget,
        halving=running.halving,
        processes=running.processes,
        scheduler=running.scheduler,
        dry_run=running.dry_run,
    )
    folder = out or Path("studies") / recipe.stem
    for file in ablate_recipe(recipe, folder, design, options, console):
        console.out(str(file), highlight=False)
