"""The picture of plans: which tokens and which weights each of four cards has."""

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from addnorm.training.parallel.planner.plan import Plan

SIDE = 4
POSITIONS = 8
TOKENS, WEIGHTS, FAINT = "#3b6fb6", "#d98032", "#eeeeee"
PLANS = (
    Plan(data=4),
    Plan(data=4, shard=True),
    Plan(tensor=4),
    Plan(pipeline=4),
    Plan(context=4),
    Plan(data=2, tensor=2),
)


def plans() -> Figure:
    """For each plan, the tokens of a step (rows down, positions across) and the weights (layers
    down, features across) of each card.
    """
    figure, axes = plt.subplots(
        len(PLANS), 9, figsize=(9, 6.2), width_ratios=[2.2, *[1] * 8], layout="constrained"
    )
    for row, plan in zip(axes, PLANS, strict=True):
        row[0].axis("off")
        row[0].text(0, 0.5, str(plan), va="center", fontsize=9)
        for card in range(4):
            _grid(row[1 + 2 * card], _tokens(plan, card), TOKENS)
            _grid(row[2 + 2 * card], _weights(plan, card), WEIGHTS)
    for card in range(4):
        axes[0, 1 + 2 * card].set_title(f"card {card}\ntokens", fontsize=8)
        axes[0, 2 + 2 * card].set_title("\nweights", fontsize=8)
    return figure


def _tokens(plan: Plan, card: int) -> np.ndarray:
    _, data, context, _ = _place(plan, card)
    has = np.zeros((SIDE, POSITIONS), bool)
    parts = 2 * plan.context
    for piece in (context, parts - 1 - context):  # a piece from the start and one from the end
        columns = slice(POSITIONS * piece // parts, POSITIONS * (piece + 1) // parts)
        has[SIDE * data // plan.data : SIDE * (data + 1) // plan.data, columns] = True
    return has


def _weights(plan: Plan, card: int) -> np.ndarray:
    pipeline, data, context, tensor = _place(plan, card)
    has = np.zeros((SIDE, SIDE), bool)
    shards = plan.held.shards
    shard = data * plan.context + context if plan.shard else 0
    for layers in plan.held.layers(SIDE, pipeline):
        n = plan.tensor * shards
        first = tensor * shards + shard
        has[layers.start : layers.stop, SIDE * first // n : SIDE * (first + 1) // n] = True
    return has


def _place(plan: Plan, card: int) -> tuple[int, int, int, int]:
    """The place of a card along pipeline, data, context and tensor."""
    sizes = (plan.pipeline, plan.data, plan.context, plan.tensor)
    pipeline, data, context, tensor = (int(i) for i in np.unravel_index(card, sizes))
    return pipeline, data, context, tensor


def _grid(ax: Axes, has: np.ndarray, color: str) -> None:
    for i, j in np.ndindex(*has.shape):
        face = color if has[i, j] else FAINT
        ax.add_patch(plt.Rectangle((j, SIDE - 1 - i), 0.88, 0.88, facecolor=face))
    ax.set(xlim=(0, has.shape[1]), ylim=(0, SIDE))
    ax.axis("off")
