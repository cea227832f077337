"""`addnorm quantize`: keep a model's weights in fewer bits, and measure what that costs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from addnorm.cli.fields import fields_given
from addnorm.cli.main import NewFile, NewPlace, with_options
from addnorm.cli.plot import check_picture
from addnorm.cli.where import ON_CPU, Imports, import_named
from addnorm.errors import InputError
from addnorm.runs.options import QuantizeOptions

if TYPE_CHECKING:
    from rich.console import Console

    from addnorm.quantize import QuantizationConfig
    from addnorm.runs.rewriting.quantize import QuantizationReport

Flag = Annotated[bool, Parameter(negative="", show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How weights and inputs are rounded.

    Parameters
    ----------
    to
        How many bits a weight has.
    weights_only
        Leave the inputs of products as they are. The default of int4.
    dynamic
        int8: round each token's input by its own largest number, the default. int4: round each
        block of 32 numbers of an input by the block's largest.
    static
        int8: round all inputs of a layer by one scale, calibrated on the run's training data.
    range
        What a static scale holds: the largest input seen (minmax), 99.99 % of their sizes
        (percentile), or as many as give the least squared error (mse).
    smoothing
        int8: how much of the inputs' outliers moves into the weights (SmoothQuant's α, such as
        0.5); calibrated too.
    rounding
        int4: to the nearest, by torchao's HQQ, or by GPTQ, which is calibrated too.
    group_size
        int4: how many neighbours share a scale: 32, 64, 128 or 256.
    """

    to: Literal["int8", "int4"] = "int8"
    weights_only: Flag = False
    dynamic: Flag = False
    static: Flag = False
    range: Literal["minmax", "percentile", "mse"] | None = None
    smoothing: float | None = None
    rounding: Literal["nearest", "hqq", "gptq"] | None = None
    group_size: Literal[32, 64, 128, 256] | None = None

    def config(self) -> "QuantizationConfig":
        """The quantisation scheme that these options ask for.

        Raises `InputError` where they contradict.
        """
        from addnorm.quantize import (
            DynamicConfig,
            Int4Config,
            Int8Config,
            StaticConfig,
            WeightsOnlyConfig,
        )

        self._check()
        if self.to == "int4":
            return Int4Config(
                rounding=self.rounding or "nearest",
                group_size=self.group_size or 32,
                activations=DynamicConfig() if self.dynamic else WeightsOnlyConfig(),
            )
        activations = DynamicConfig()
        if self.weights_only:
            activations = WeightsOnlyConfig()
        elif self.static:
            activations = StaticConfig(range=self.range or "minmax")
        return Int8Config(activations=activations, smoothing=self.smoothing)

    def _check(self) -> None:
        inputs = {
            "--weights-only": self.weights_only,
            "--dynamic": self.dynamic,
            "--static": self.static,
        }
        int8 = {
            "--static": self.static,
            "--range": self.range is not None,
            "--smoothing": self.smoothing is not None,
        }
        int4 = {
            "--rounding": self.rounding is not None,
            "--group-size": self.group_size is not None,
        }
        others = [name for name, given in (int4 if self.to == "int8" else int8).items() if given]
        if others:
            other = "int4" if self.to == "int8" else "int8"
            raise InputError(f"{others[0]} is for --to {other}, and this is --to {self.to}")
        if len(chosen := [name for name, given in inputs.items() if given]) > 1:
            raise InputError(f"{' and '.join(chosen)} are alternatives: give one of them")
        if self.smoothing is not None and not 0 < self.smoothing < 1:
            raise InputError(
                f"--smoothing {self.smoothing:g}: give a number between 0 and 1, such as 0.5; "
                "without it nothing is smoothed"
            )
        if self.range is not None and not self.static:
            raise InputError(f"--range {self.range} is that of --static: give both")


INT8 = Scheme()
USUAL = QuantizeOptions()


def quantize(
    run: Path,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    out: NewPlace | None = None,
    scheme: Scheme = INT8,
    options: QuantizeOptions = USUAL,
    sweep: Flag = False,
    plot: NewFile | None = None,
    imports: Imports = (),
) -> None:
    """Keep the weights of a model in 8 or 4 bits, and compare size, speed and scores.

    The folder that it writes opens in every command that uses a model. Any field of the recipe can
    be given after the run, as `--data.kind text --data.train FILE`.
    Example: `addnorm quantize runs/my --to int8 --static --calibrate 128 --out runs/my-int8`.

    Parameters
    ----------
    run
        A run folder, or a Hugging Face folder.
    overrides
        Fields to replace, as `--table.field value`.
    out
        The run folder to write; not needed for a sweep.
    sweep
        Measure every scheme and write no folder.
    plot
        A picture of size, loss and speed by scheme: .png, .svg or .pdf.
    """
    fields = fields_given(overrides)
    if plot is not None:
        check_picture(plot, "--plot")
    if (out is None) != sweep:
        raise InputError(
            "a sweep writes no folder: leave out --out" if sweep else "--out is missing: a folder"
        )
    import_named(imports)
    if sweep and (scheme != INT8 or options.keep_worst):
        raise InputError("a sweep measures every scheme: leave out the options of one")
    opened = ON_CPU.open(run, fields)
    from addnorm.cli.terminal import console
    from addnorm.runs.rewriting.quantize import quantize_run, sweep_run

    config = scheme.config()
    if out is None:
        report = sweep_run(opened, options=options, given=fields, console=console)
    else:
        report = quantize_run(opened, out, config, options, fields, console)
    _print(report, "" if report.unmeasured else options.split)
    if plot is not None:
        from addnorm.inspect.compression import compression_picture

        compression_picture(report.models, plot)
        console.out(str(plot), highlight=False)
    if out is not None:
        console.out(f"Next: addnorm info {out}", highlight=False)


def _print(report: "QuantizationReport", split: str) -> None:
    """Print a row for each model, and the unquantised layers."""
    from rich.measure import Measurement
    from rich.table import Table

    from addnorm.cli.terminal import output

    console = output(markup=False)
    table = Table(box=None, pad_edge=False)
    before = next(iter(report.models.values()))
    scores = [name for name in before.scores if name != "examples"]
    table.add_column("", vertical="bottom")
    figures = ["MB", "of before", *scores, *(f"tokens/s, {n}" for n in before.speeds)]
    for name in figures:
        heading = name.replace("_per_", " per\n").replace(", ", ",\n").replace("of ", "of\n")
        table.add_column(heading, justify="right", no_wrap=True)
    for name, figures_of in report.models.items():
        table.add_row(
            name,
            f"{figures_of.n_bytes / 1e6:,.2f}",
            f"{figures_of.n_bytes / before.n_bytes:.3f}",
            *(f"{figures_of.scores[score]:.4f}" for score in scores),
            *(f"{speed:,.0f}" for speed in figures_of.speeds.values()),
        )
    if report.sensitivity:
        worst = list(report.sensitivity.items())[:10]
        console.print("rise of the loss if that layer alone is rounded, nats a target:")
        for name, rise in worst:
            console.print(f"  {rise:+.6f}  {name}", soft_wrap=True)
    if report.unquantized:
        console.print(f"kept as before: {', '.join(report.unquantized)}", soft_wrap=True)
    _print_left(report, console)
    if report.unmeasured is not None:
        console.print(f"no scores: {with_options(report.unmeasured, 'quantize')}", soft_wrap=True)
    if split:
        console.print(f"scores of the {split} split:")
    narrowest = Measurement.get(console, console.options.update(max_width=1000), table).minimum
    console.width = max(console.width, narrowest)  # no figure is cut off
    console.print(table)


def _print_left(report: "QuantizationReport", console: "Console") -> None:
    """Print the unquantised weights, their share, and the layers that can be included."""
    if report.left:
        largest = [f"{n:,} of {name}" for name, n in list(report.left.items())[:4]]
        more = len(report.left) - len(largest)
        n_bytes = [*report.models.values()][-1].n_bytes
        share = 4 * sum(report.left.values()) / n_bytes
        console.print(
            f"not quantised: {sum(report.left.values()):,} weights: {', '.join(largest)}"
            + (f" and {more} more parts" if more else "")
            + f"; {100 * share:.0f} % of the new size",
            soft_wrap=True,
        )
    if report.includable:
        first = ", ".join(report.includable[:6])
        more = len(report.includable) - 6
        console.print(
            f"--include quantises these too: {first}" + (f" and {more} more" if more > 0 else ""),
            soft_wrap=True,
        )
