"""`addnorm plan`: split a training over many cards, by arithmetic alone."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from addnorm.cli.fields import fields_given
from addnorm.cli.main import at_least
from addnorm.cli.where import Imports, import_named, working
from addnorm.files import read_toml

if TYPE_CHECKING:
    from rich.table import Table

    from addnorm.runs.planning import Planned
    from addnorm.training.parallel.planner.plan import Plan


def plan(
    recipe: Path,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True)],
    cards: Annotated[int, Parameter(validator=at_least(1))],
    card: str,
    link: str | None = None,
    per_node: Annotated[int | None, Parameter(validator=at_least(1))] = None,
    top: Annotated[int, Parameter(validator=at_least(1))] = 8,
    as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False,
    imports: Imports = (),
) -> None:
    """Plan a training on many cards: memory, exchanged bytes, idle time, tokens a second and time.

    Every way to split rows, weights, layers and texts over the cards is computed, and nothing is
    run: the best comes first, and the others say why they lose or do not fit. Any field of the
    recipe can be given, as for `train`.
    Example: `addnorm plan my.toml --cards 1024 --card h100 --link nvlink,ib400`.

    Parameters
    ----------
    recipe
        The TOML file to train. Data are not read: `--model.vocab_size` gives the vocabulary where
        the tokenizer learns it from them.
    overrides
        Fields to replace, as `--table.field value`.
    cards
        The number of cards.
    card
        The card: a100-40, a100, h100, h200, b200, mi300x, rtx4090 or cpu (one core). Or one with
        other figures, `'{ card = "h100", memory = 96e9, bandwidth = 2.4e12 }'`: bytes, bytes a
        second, and with `flops` operations a second.
    link
        The links of a card within a node and between nodes: `nvlink,ib400`; by default the usual
        ones of the card. A number is bytes a second in one direction, `450e9,50e9`.
    per_node
        The cards of a node; by default eight.
    top
        How many plans to show.
    as_json
        Print every plan with all its values, in one line of JSON for each.
    """
    read_toml(recipe)
    from addnorm.training.parallel.planner.cluster import cluster_of

    cluster = cluster_of(cards, card, link, per_node)
    fields = fields_given(overrides)
    import_named(imports)
    from addnorm.runs.planning import plan_recipe
    from addnorm.runs.recipes.recipe import read_recipe

    with working("planning"):
        planned = plan_recipe(read_recipe(recipe, fields, import_parts=True), cluster)
    if as_json:
        for row in planned.rows():
            print(json.dumps(row, ensure_ascii=False))
        return
    show(planned, recipe, top)


def show(planned: "Planned", recipe: Path, top: int) -> None:
    """Print the best plans, the memory and exchanges of the first, and how many do not fit."""
    from addnorm.cli.terminal import output

    console = output()
    best, estimates = planned.best, planned.plans.estimates
    console.print(_table(planned, top))
    others = [each for each in estimates if not each.fits]
    if others:
        console.print(f"{len(others)} of {len(estimates)} plans do not fit.")
    for text in _problems(planned, top):
        console.print(text)
    if refused := planned.plans.refused:
        numbers, reason = ", ".join(map(str, refused)), next(iter(refused.values()))
        console.print(f"tensor = {numbers} left out: {reason}.")
    console.print()
    console.print(_memory(planned))
    console.print()
    console.print(_exchanges(planned))
    console.print()
    for name, plan in (
        ("The first plan", best.plan),
        ("The first that train can split", splittable(planned)),
    ):
        if plan is not None and best.fits:
            console.print(f"{name}: {command_of(planned, plan, recipe)}", soft_wrap=True)


def command_of(planned: "Planned", plan: "Plan", recipe: Path) -> str:
    """The command that trains with a plan."""
    words = " ".join(f"--{key} {value}" for key, value in planned.fields(plan).items())
    nodes, each = divmod(plan.cards, planned.cluster.per_node)
    if nodes > 1 and not each:
        launcher = f"torchrun --nnodes {nodes} --nproc-per-node {planned.cluster.per_node} -m "
        return f"{launcher}addnorm train {recipe} {words}"
    processes = f" --processes {plan.cards}" if plan.cards > 1 else ""
    return f"addnorm train {recipe} {words}{processes}"


def splittable(planned: "Planned") -> "Plan | None":
    """The best plan that `train` can run, if it is not the best of all."""
    plans = [each.plan for each in planned.plans.estimates if each.fits]
    first = next((plan for plan in plans if planned.refusal(plan) is None), None)
    return None if first is planned.best.plan else first


def _table(planned: "Planned", top: int) -> "Table":
    from addnorm.cli.terminal import figures_table

    columns = ("rows × passes", "memory", "MFU", "tokens/s", "idle", "time", "train", "")
    table = figures_table(columns)
    table.columns[0].header, table.columns[-1].justify = "plan", "left"
    for each in planned.plans.estimates[:top]:
        plan = each.plan
        idle = each.time.idle / each.time.total
        table.add_row(
            str(plan) + (", recomputed" if plan.checkpointing == "block" else ""),
            f"{plan.rows} × {each.micro_batches}",
            _gigabytes(each.memory.total),
            f"{each.mfu:.1%}",
            f"{each.tokens_per_second:,.0f}",
            f"{idle:.0%}" if plan.pipeline > 1 else "",
            "" if each.days is None else _time(24 * each.days),
            "no" if planned.refusal(plan) else "yes" if planned.runs(plan) else "on CPUs",
            planned.why(each),
        )
    return table


def _problems(planned: "Planned", top: int) -> list[str]:
    """The reasons why `train` cannot run the plans shown, each once."""
    shown = [each.plan for each in planned.plans.estimates[:top]]
    reasons = dict.fromkeys(filter(None, map(planned.refusal, shown)))
    texts = [f"train: {reason}." for reason in reasons]
    if planned.cluster.card.name != "cpu" and any(plan.cards > 1 for plan in shown):
        texts.append("train: over processes it runs on CPUs so far, and not on these cards.")
    return texts


def _memory(planned: "Planned") -> "Table":
    """The memory of the first plan, split by use."""
    from addnorm.cli.terminal import figures_table

    table = figures_table(("a card",))
    table.columns[0].header = f"memory of {planned.best.plan}"
    for name, size in vars(planned.best.memory).items():
        if size:
            table.add_row(USES[name], _gigabytes(size))
    table.add_row("together", _gigabytes(planned.best.memory.total))
    return table


USES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimiser state",
    "average": "moving average",
    "activations": "saved activations",
    "buffers": "gathered weights, or sums of gradients",
}
"""The uses of memory, in words."""


def _exchanges(planned: "Planned") -> "Table":
    """The exchanges of the first plan in one step."""
    from addnorm.cli.terminal import figures_table

    table = figures_table(("by", "among", "over", "sent by a card"))
    table.columns[0].header = "in a step"
    for each, link in zip(planned.best.exchanges, planned.links(planned.best), strict=True):
        sent = _gigabytes(each.sent)
        table.add_row(each.of, each.collective, f"{each.axis} {each.processes}", link, sent)
    return table


def _time(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:,.1f} days"
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"


def _gigabytes(size: float) -> str:
    if size < 1e9:
        return f"{size / 1e6:,.3g} MB"
    return f"{size / 1e9:,.1f} GB" if size < 1e11 else f"{size / 1e9:,.0f} GB"
