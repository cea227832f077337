"""Benchmark results as a table and as JSON."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from addnorm.atomic import make_folder
from addnorm.bench.benchmark import Outcome, Spread, TargetResult
from addnorm.bench.run import Result, facts
from addnorm.machine import file_name, processor

CEILINGS = {"f32": "f32 product", "bf16": "bf16 product", "int8": "int8 product", "read": "read"}


def show(result: Result, console: Console) -> None:
    """Print tables of the implementations, the ceilings and the targets."""
    benchmark = result.benchmark
    heading = f"[bold]{benchmark.name}[/bold]: {benchmark.description}; in {benchmark.unit}"
    console.print(heading, soft_wrap=True)
    console.print(implementations(result))
    for outcome in result.outcomes.values():
        if outcome.problem:
            console.print(f"{outcome.name}: {outcome.problem}", markup=False, soft_wrap=True)
    rates = [
        f"{label} {Spread.of(result.machine.figures(name)).median / 1e9:,.0f} "
        + ("GB/s" if name == "read" else "GFLOP/s")
        for name, label in CEILINGS.items()
        if result.machine.figures(name)
    ]
    console.print(f"ceilings: {', '.join(rates) or result.machine.problem}", soft_wrap=True)
    if benchmark.targets:
        console.print(targets(result))


def implementations(result: Result) -> Table:
    """Return a table with a row for each measured implementation."""
    benchmark = result.benchmark
    table = Table(box=None, pad_edge=False)
    table.add_column("implementation", no_wrap=True)
    for name in ("median", "spread", "of ceiling", "peak MiB", *benchmark.details):
        table.add_column(name, justify="right")
    for outcome in (o for o in result.outcomes.values() if not o.problem):
        table.add_row(outcome.name, *cells(outcome, benchmark.figure, benchmark.details))
    return table


def cells(outcome: Outcome, figure: str, details: tuple[str, ...]) -> list[str]:
    """Return an implementation's table cells."""
    value = Spread.of(outcome.figures(figure))
    fraction, peak = outcome.figures("fraction"), outcome.figures("peak_mib")
    more = [outcome.figures(name) for name in details]
    return [
        number(value.median),
        _span(value),
        f"{Spread.of(fraction).median:.0%}" if fraction else "",
        f"{max(peak):,.0f}" if peak else "",
        *(number(Spread.of(values).median) if values else "" for values in more),
    ]


def targets(result: Result) -> Table:
    """Return a table with a row for each target."""
    table = Table(box=None, pad_edge=False)
    for name in ("target", "must", "aim", "measured", "spread", "met"):
        table.add_column(name, justify="left" if name in ("target", "met") else "right")
    for target, target_result in zip(result.benchmark.targets, result.target_results, strict=True):
        goal, value = target.goal, target_result.value
        marks = [mark(x, at_most=goal.at_most) for x in (goal.must, goal.aim)]
        seen = ["", ""] if value is None else [number(value.median), _span(value)]
        table.add_row(target_result.comparison, *marks, *seen, met(target_result))
    return table


def mark(value: float | None, *, at_most: bool) -> str:
    """Return a target value with its direction (≤ or ≥)."""
    return "" if value is None else f"{'≤' if at_most else '≥'} {number(value)}"


def met(target_result: TargetResult) -> str:
    """Describe whether a target is met."""
    return {"aim": "met, aim too", "must": "met"}.get(target_result.met, target_result.met)


def _span(value: Spread) -> str:
    return f"{number(value.low)}…{number(value.high)}"


def number(value: float) -> str:
    """Format a number with three significant digits and thousands separators."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_json(result: Result) -> dict[str, Any]:
    """Return the complete result, including all rounds, for JSON."""
    benchmark = result.benchmark
    return {
        "work": benchmark.name,
        "description": benchmark.description,
        "unit": benchmark.unit,
        "command": result.command,
        **facts(),
        "rounds": result.rounds,
        "ceilings": {name: spread_of(result.machine.figures(name)) for name in CEILINGS}
        if not result.machine.problem
        else result.machine.problem,
        "contenders": [
            _implementation(outcome, benchmark.figure) for outcome in result.outcomes.values()
        ],
        "targets": [
            {
                "target": target_result.comparison,
                **{k: v for k, v in asdict(target.goal).items() if v is not None},
                "measured": None
                if target_result.value is None
                else rounded(asdict(target_result.value)),
                "met": target_result.met,
            }
            for target, target_result in zip(benchmark.targets, result.target_results, strict=True)
        ],
    }


def _implementation(outcome: Outcome, figure: str) -> dict[str, Any]:
    if outcome.problem:
        return {"name": outcome.name, "problem": outcome.problem}
    details = {name: None for r in outcome.rounds for name in r.details}
    return {
        "name": outcome.name,
        **spread_of(outcome.figures(figure)),
        **{name: spread_of(outcome.figures(name)) for name in details},
    }


def spread_of(values: list[float]) -> dict[str, Any]:
    """Return the median, minimum, maximum and all rounds."""
    return rounded({**asdict(Spread.of(values)), "rounds": values})


def rounded(figures: dict[str, Any]) -> dict[str, Any]:
    """Round to five significant digits."""
    return {
        name: [float(f"{x:.5g}") for x in value]
        if isinstance(value, list)
        else float(f"{value:.5g}")
        for name, value in figures.items()
    }


def write(result: Result, folder: Path) -> Path:
    """Write the result to `bench-NAME-PROCESSOR.json`, one file per processor."""
    make_folder(folder)
    file = folder / f"bench-{result.benchmark.name}-{file_name(processor())}.json"
    file.write_text(json.dumps(as_json(result), indent=1, ensure_ascii=False) + "\n", "utf-8")
    return file
