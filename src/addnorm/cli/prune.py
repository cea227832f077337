"""`addnorm prune`: remove heads, feed-forward rows and layers, and measure the cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from addnorm.cli.fields import fields_given
from addnorm.cli.imports import Imports, import_named
from addnorm.cli.main import with_options
from addnorm.files import check_model_folder

if TYPE_CHECKING:
    from addnorm.runs.rewriting.prune import PruneReport


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Removed:
    """What to remove.

    Parameters
    ----------
    heads
        The share of heads to remove in every layer; a key/value head leaves with its queries.
    feed_forward
        The share of the rows of every feed-forward to remove.
    layers
        The layers to keep: `every:2`, or their numbers from 0, as `0 2 4`.
    calibrate
        How many validation examples to measure importance on.
    """

    heads: float | None = None
    feed_forward: float | None = None
    layers: Annotated[
        tuple[str, ...], Parameter(consume_multiple=True, negative="", show_default=False)
    ] = ()
    calibrate: int = 512


NOTHING = Removed()


def prune(
    run: Path,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    out: Path,
    removed: Removed = NOTHING,
    recover: int = 0,
    split: Literal["valid", "test"] = "valid",
    imports: Imports = (),
) -> None:
    """Remove the heads, feed-forward rows and layers that matter least; write a smaller model.

    The result is a plain run without masks: its recipe describes the smaller model. Any field of
    the recipe can be given after the run: `--data.kind text`, `--train.lr 3e-4`.
    Example: `addnorm prune runs/gpt --heads 0.5 --recover 500 --out runs/gpt-small`.

    Parameters
    ----------
    run
        A run folder, or a Hugging Face folder.
    overrides
        Fields to replace, as `--table.field value`.
    out
        The run folder to write.
    recover
        Train so many steps afterwards.
    split
        Which part of the data to measure on.
    """
    fields = fields_given(overrides)
    import_named(imports)
    check_model_folder(run)
    from addnorm.cli.terminal import console
    from addnorm.runs.rewriting.prune import PruneOptions, prune_run

    chosen = PruneOptions(
        heads=removed.heads,
        feedforward=removed.feed_forward,
        layers=removed.layers,
        calibrate=removed.calibrate,
        recover=recover,
        split=split,
    )
    _print(prune_run(run, out, chosen, fields, console), split)
    console.out(f"Next: addnorm info {out}", highlight=False)


def _print(report: "PruneReport", split: str) -> None:
    """Print parameters, operations, scores and time a token, before and after."""
    from rich.table import Table

    from addnorm.cli.terminal import output
    from addnorm.inspect.flops import forward_flops
    from addnorm.runs.train.train_run import count

    names = [*report.models, *(name for name in report.scores if name not in report.models)]
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")

    def row(title: str, cells: dict[str, str]) -> None:
        table.add_row(title, *(cells.get(name, "") for name in names))

    models = report.models
    row("parameters", {name: f"{count(model):,}" for name, model in models.items()})
    if (batch := report.batch) is not None:
        per = {name: forward_flops(model, batch) / batch.n_tokens for name, model in models.items()}
        row("FLOP a target", {name: f"{flops:,.0f}" for name, flops in per.items()})
    for n in next(iter(report.speeds.values())):
        by = {name: f"{1e6 / report.speeds[name][n]:,.1f}" for name in models}
        row(f"µs a token, {n} text{'s' * (n > 1)}", by)
    for score in next(iter(report.scores.values()), {}):
        row(score, {name: f"{one[score]:.4f}" for name, one in report.scores.items()})
    console = output(markup=False)
    if report.scores:
        console.print(f"scores of the {split} split:")
    console.print(table)
    if report.unmeasured is not None:
        console.print(
            f"nothing was scored: {with_options(report.unmeasured, 'prune')}", soft_wrap=True
        )
