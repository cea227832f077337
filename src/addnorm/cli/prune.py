"""`addnorm prune`: remove heads, feed-forward rows and layers, and measure the cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from addnorm.cli.fields import fields_to_keep_model
from addnorm.cli.main import NewPlace, with_options
from addnorm.cli.where import ON_CPU, Imports, import_named
from addnorm.runs.options import PruneOptions

if TYPE_CHECKING:
    from addnorm.runs.rewriting.prune import PruneReport


NOTHING = PruneOptions()


def prune(
    run: Path,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    out: NewPlace,
    options: PruneOptions = NOTHING,
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
    """
    fields = fields_to_keep_model(overrides, "addnorm swap")
    import_named(imports)
    opened = ON_CPU.open(run, fields)
    from addnorm.cli.terminal import console
    from addnorm.runs.rewriting.prune import prune_run

    report = prune_run(opened, out, options, fields, console)
    _print(report, options.split)
    console.out(f"Next: addnorm info {out}", highlight=False)


def _print(report: "PruneReport", split: str) -> None:
    """Print parameters, operations, scores and time per token, before and after."""
    from addnorm.cli.terminal import figures_table, output
    from addnorm.inspect.flops import forward_flops
    from addnorm.runs.train.train_run import count

    names = [*report.models, *(name for name in report.scores if name not in report.models)]
    table = figures_table(names)

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
        row(score, {name: f"{scores[score]:.4f}" for name, scores in report.scores.items()})
    console = output(markup=False)
    if report.scores:
        console.print(f"scores of the {split} split:")
    console.print(table)
    if report.unmeasured is not None:
        console.print(
            f"nothing was scored: {with_options(report.unmeasured, 'prune')}", soft_wrap=True
        )
