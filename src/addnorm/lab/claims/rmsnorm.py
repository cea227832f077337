"""Claim 9: RMSNorm is as good as LayerNorm and cheaper."""

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import nn

from addnorm.lab.claims.claim import LOSS, Claim, Finding, Panel, Results, Row, Settings, Size
from addnorm.lab.claims.learning import (
    BATCH,
    Course,
    decoder,
    learn_text,
    loss_of,
    loss_on_new,
    seconds_in_turn,
)
from addnorm.lab.claims.tasks import Examples, Text, next_tokens, text_of

NORMS = ("layernorm", "rmsnorm")
STEPS = {"quick": 300, "full": 2000, "night": 4000}
TIMED = {"quick": 20, "full": 60, "night": 200}
WIDTHS, LENGTH, LIMIT = (64, 256), 32, 0.02


def cells(size: Size, task: str) -> Sequence[Settings]:
    """Return a cell to train for each norm, and one for each width to time both norms in turn."""
    trained = [{"task": task, "norm": norm, "steps": STEPS[size]} for norm in NORMS]
    return [
        *trained,
        *({"task": task, "d": d, "timed": TIMED[size], "alone": True} for d in WIDTHS),
    ]


def measure(settings: Settings, seed: int) -> Iterable[Row]:
    """Yield the loss after equal steps, or each norm's time per step, measured in turn."""
    text = text_of(settings["task"])
    if "timed" in settings:
        yield from _timed(text, settings["d"], settings["timed"], seed)
        return
    model = decoder(text.vocab, seed, norm={"kind": settings["norm"]})
    learn_text(model, settings["task"], LENGTH, Course(settings["steps"]), seed)
    loss = loss_on_new(model, settings["task"], 256, LENGTH)
    yield Row("loss", "loss", settings["norm"], loss)


def _timed(text: Text, d: int, repeats: int, seed: int) -> Iterable[Row]:
    models = {name: decoder(text.vocab, seed, d_model=d, norm={"kind": name}) for name in NORMS}
    examples = next_tokens(text.draw(torch.Generator().manual_seed(seed), BATCH, LENGTH + 1))
    works = {name: partial(_step, model, examples) for name, model in models.items()}
    for name, seconds in seconds_in_turn(works, repeats).items():
        yield Row("time", name, d, 1000 * seconds)


def _step(model: nn.Module, examples: Examples) -> None:
    loss_of(model, examples).backward()
    model.zero_grad()


def judge(results: Results) -> Sequence[Finding]:
    """Return the verdict by the claim's rule."""
    worse = results.difference(("loss", "loss", "rmsnorm"), ("loss", "loss", "layernorm"))
    widest = results.xs("time")[-1]
    ratio = results.ratio(("time", "rmsnorm", widest), ("time", "layernorm", widest))
    return [Finding.at_most(worse, LIMIT, WORSE), Finding.at_most(ratio, 1.0, TIME)]


WORSE = (
    "After equal steps RMSNorm's loss is {mean} nats above LayerNorm's ({low} to {high}; equal is "
    "up to {limit}).",
    "相同步数后，RMSNorm 的损失比 LayerNorm 高 {mean} 纳特（{low} 至 {high}；不超过 {limit} "
    "视为相等）。",
)
TIME = (
    "A step with RMSNorm takes {mean} of the time at the greatest width ({low} to {high}; cheaper "
    "is below {limit}).",
    "在最大宽度下，使用 RMSNorm 的一步用时为 {mean}（{low} 至 {high}；低于 {limit} 视为更省）。",
)
CLAIM = Claim(
    title=("RMSNorm and LayerNorm", "RMSNorm 与 LayerNorm"),
    statement=(
        "RMSNorm is as good as LayerNorm and cheaper, by 7 % to 64 % (Zhang & Sennrich 2019).",
        "RMSNorm 与 LayerNorm 同样好，而且更省，省 7 % 至 64 %（Zhang 与 Sennrich 2019）。",
    ),
    literature=(
        "Zhang & Sennrich (2019) measured unfused norms in recurrent and Transformer models; with "
        "fused kernels little of the difference is left.",
        "Zhang 与 Sennrich（2019）在循环与 Transformer 模型中测量了未融合的归一化；"
        "使用融合算子后差异所剩无几。",
    ),
    literature_finds="supported",
    predicted=("As good; hardly cheaper.", "同样好；几乎不更省。"),
    rule=(
        f"Decoders of width 64, equal steps. The claim holds if RMSNorm is at most {LIMIT} nats "
        "worse and forward and backward take less time, both norms taken in turn in one process.",
        f"宽度 64 的解码器，步数相同。若 RMSNorm 最多差 {LIMIT} 纳特，且其一步用时更少"
        "（同一进程内交替测量），则论断成立。",
    ),
    panels={
        "loss": Panel(("norm", "归一化"), LOSS),
        "time": Panel(("width", "宽度"), ("a step, ms", "一步用时（毫秒）"), True),
    },
    cells=cells,
    measure=measure,
    judge=judge,
    natural=True,
)
