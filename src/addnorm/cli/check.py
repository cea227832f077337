"""`addnorm check`: compare combinations of parts with their reference definitions."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from addnorm.cli.main import at_least
from addnorm.cli.where import Imports, import_named
from addnorm.errors import InputError
from addnorm.machine import cores
from addnorm.runs.recipes.custom_parts import named_object

if TYPE_CHECKING:
    from addnorm.checking.own import PartReport

Count = Annotated[int, Parameter(validator=at_least(0))]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OwnPart:
    """A custom part, and how it is checked."""

    part: str = ""
    """A part of your own, `module:Class`; `module.py` is looked for in this folder."""
    definition: str = ""
    """Its definition, `module:function`."""
    family: str = ""
    """Its family, where that is not clear: norm, feedforward, … Without `--part`, a Hugging Face
    folder whose family of checkpoints is compared with transformers."""
    imports: Imports = ()
    no_compile: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Do not compile the part."""


def check(
    *,
    every: Annotated[bool, Parameter(name="--all", negative="", show_default=False)] = False,
    sample: Count = 480,
    seed: int = 0,
    only: str = "",
    compile: Annotated[int, Parameter(validator=at_least(0), negative="")] = 0,
    jobs: Annotated[int, Parameter(validator=at_least(1))] = 1,
    own: OwnPart = OwnPart(),
) -> int:
    """Hold tiny models of combinations of parts against their plain definition in float64.

    Logits and gradients; with a cache in random pieces, with rows chosen on the way, served from
    pages among others, with padding on either side, alone and in a batch, packed as documents; in
    float32 and bfloat16, on texts so long that they are read in tiles; every kernel by itself, and
    what beams write. Models, training steps, writing and quantised layers also run on a device that
    stands in for a GPU: it is the GPU test that every machine can run. A sample has every part,
    every variant and every pair of parts in it, from 480 on. Exits with status 1 where anything
    differs.
    Example: `addnorm check --sample 50 --jobs 2`.

    `--part my_parts:DyTConfig` checks a part of your own instead, with every part of ours that it
    allows. A definition is a plain function in float64; `weights` are the part's own by name, `x`
    is `[seq, width]`, all texts one after another:

    * norm, feedforward: `f(config, weights, x)`
    * score: `f(config, weights, head, q, k)` to `[q, kv]`
    * position: `f(config, weights, q, head)`, added to the scores; or a dictionary of such
      functions: `bias`, `embed` and `rotate` as `f(config, weights, x, texts)`, `queries`
    * pattern: `f(config, i, j)`, whether place i may look at place j
    * core: `f(config, weights, heads)` to the outputs of all heads; `heads` has `q`, `k`, `v`,
      `score(h, s)`, `seen`, `shared(h)`, `layer`
    * output: `f(config, weights, heads, x)` to the heads
    * mixer: `f(config, weights, x, place)`; `place` has `texts`, `causal`, `position`, `layer`
    * placement: `f(config, norm, x, sublayer, depth)`, `norm(name, x)`; or a dictionary of
      `sublayer` and `final`, whether a norm follows the last layer
    * embedding: `f(config, weights, tokens, position, norm)`
    * head: `f(config, weights, x, texts)`

    `--family my_folder/` proves a family of checkpoints, built-in or imported with `--import`: a
    model of the folder's `config.json` with random weights, compared with transformers: every key,
    logits with padding on either side, tokens written for texts of unequal length, and the round
    trip, equal bit for bit. It names the first layer that differs. Of a large model, sizes are
    reduced.

    Parameters
    ----------
    every
        Check all combinations: more than ten thousand, an hour or two with two jobs.
        Each that differs is named at once, on standard error, and in the report.
    sample
        How many to check, unless `--all` is given.
    seed
        Which sample.
    only
        Those with parts of these names; `*` stands for anything: `decoder/rotary/*/moe`.
    compile
        Whether `torch.compile` gives the same, on that many of them; takes long.
    jobs
        How many processes to use.
    """
    if jobs > cores():
        raise InputError(f"--jobs {jobs}: this machine has {cores()} cores, so at most {cores()}")
    import_named(own.imports)
    if own.part or own.definition:
        return _check_part(own, sample, seed)
    if own.family:
        return _check_family(Path(own.family))
    return _check_cells(only, (0 if every else sample, seed), compile, jobs, every=every)


def _check_cells(only: str, draw: tuple[int, int], compile: int, jobs: int, *, every: bool) -> int:
    from addnorm.checking.run import check as check_cells
    from addnorm.checking.run import compiled, failure, matching
    from addnorm.checking.sampling import sample
    from addnorm.cli.terminal import console
    from addnorm.long_work import counted_work

    cells, others = matching(only)
    chosen = cells if every else sample(*draw, cells)
    items = [*chosen, *others]
    with counted_work(console, "combinations", len(items)) as watch:
        report = check_cells(
            items,
            jobs=jobs,
            watch=watch,
            failed=lambda result: console.print(failure(result), markup=False, soft_wrap=True),
        )
    few = sample(compile, draw[1], [cell for cell in chosen if not cell.refusal()])[:compile]
    with counted_work(console, "compiled combinations", len(few)) as watch:
        for done, cell in enumerate(few, start=1):
            report.add(compiled(cell))
            watch(done)
    _print([report.text()])
    return 1 if report.failed else 0


def _check_part(own: OwnPart, sample: int, seed: int) -> int:
    if not own.part:
        raise InputError("--definition defines a part: name it with --part module:Class")
    part = named_object(own.part, "part")
    definition = named_object(own.definition, "definition") if own.definition else None
    from addnorm.checking.own import PARTNERS, check_part
    from addnorm.cli.terminal import console
    from addnorm.long_work import long_work

    with long_work(console, own.part) as say:
        report = check_part(
            part,
            family=own.family or None,
            definition=definition,
            compile=not own.no_compile,
            partners=min(sample, PARTNERS),
            seed=seed,
            watch=lambda n: say(f"{own.part}: {n} comparisons"),
        )
    _print(part_lines(report))
    return 1 if report.report.failed or not report.report.checked else 0


def _check_family(folder: Path) -> int:
    if not folder.is_dir():
        raise InputError(
            f"`family = {folder}`: no such folder: without a part, --family names a Hugging Face "
            "folder"
        )
    from addnorm.checking.checkpoints import check_family
    from addnorm.checking.run import failure
    from addnorm.cli.terminal import console
    from addnorm.long_work import long_work

    with long_work(console, f"comparing {folder} with transformers"):
        result = check_family(folder)
    if result.failed:
        _print([failure(result)])
        return 1
    _print([f"{result.cell}: equal to transformers in {result.compared:,} comparisons"])
    return 0


def part_lines(report: "PartReport") -> list[str]:
    """The report on a custom part: its family, the checks and the result."""
    first = f"{report.family} {report.kind}: {', '.join(report.checked)}"
    nothing = [] if report.report.checked else ["failed: it goes with no part of ours"]
    return [first, report.report.text(), *nothing]


def _print(lines: list[str]) -> None:
    from rich.console import Console

    Console(highlight=False).print("\n".join(lines), markup=False, soft_wrap=True)
