"""Claim 4: layer norm beats batch norm as lengths vary, and bears four times the learning rate."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from addnorm.lab.claims.claim import LOSS, Claim, Finding, Panel, Results, Row, Settings, Size
from addnorm.lab.claims.learning import BATCH, Course, decoder, learn, loss_of
from addnorm.lab.claims.tasks import text_of, unequal_texts
from addnorm.lab.statistics import mean_interval

NORMS, RATED = ("layernorm", "rmsnorm", "batchnorm"), ("layernorm", "batchnorm")
SPREADS = {"quick": (0.0, 0.9), "full": (0.0, 0.5, 0.9), "night": (0.0, 0.25, 0.5, 0.75, 0.95)}
STEPS = {"quick": 120, "full": 400, "night": 400}
POWERS = {"quick": range(0, 13, 2), "full": range(4, 13), "night": range(17)}
SLOWEST = 1e-3
WORST_SPREAD, MEAN_LENGTH = 0.9, 24


def cells(size: Size, task: str) -> Sequence[Settings]:
    """Return a cell for each norm and spread of lengths, and for each norm and learning rate."""
    base = {"task": task, "steps": STEPS[size]}
    spreads = [{**base, "norm": norm, "spread": s} for norm in NORMS for s in SPREADS[size]]
    rates = [SLOWEST * 2 ** (power / 2) for power in POWERS[size]]
    return spreads + [{**base, "norm": norm, "rate": rate} for norm in RATED for rate in rates]


def measure(settings: Settings, seed: int) -> Iterable[Row]:
    """Train on texts of unequal length; yield the loss on new ones."""
    text, name = text_of(settings["task"]), settings["norm"]
    spread, rate = settings.get("spread", WORST_SPREAD), settings.get("rate")
    model = decoder(text.vocab, seed, norm={"kind": name})
    learn(
        model,
        lambda generator: unequal_texts(generator, text, BATCH, MEAN_LENGTH, spread),
        Course(settings["steps"], rate or 5e-3),
        seed,
    )
    model.eval()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(7)
        loss = loss_of(model, unequal_texts(generator, text, 256, MEAN_LENGTH, spread)).item()
    loss = min(loss, 20.0) if loss == loss else 20.0
    yield Row("spread" if rate is None else "rate", name, spread if rate is None else rate, loss)


def judge(results: Results) -> Sequence[Finding]:
    """Return the verdict by the claim's rule."""
    widest = results.xs("spread")[-1]
    worse = results.difference(("spread", "batchnorm", widest), ("spread", "layernorm", widest))
    grown = results.growth("spread", "batchnorm", "layernorm", widest, 0.0)
    return [
        Finding.at_least(worse, 0.0, WORSE),
        Finding.at_least(grown, 0.0, GROWS),
        four_times(results),
    ]


def four_times(results: Results) -> Finding:
    """Return whether the largest usable rates differ by a factor of four, within a sweep step."""
    rates = [float(rate) for rate in results.xs("rate")]
    ours, theirs = (largest_rates(results, name) for name in RATED)
    if rates[-1] in (*ours.values(), *theirs.values()):
        return Finding("undecided", ENDLESS)
    ratio = mean_interval([ours[seed] / theirs[seed] for seed in ours])
    step = rates[1] / rates[0]
    low, high = min(ratio.low, ratio.mean / step), max(ratio.high, ratio.mean * step)
    return Finding.at_least(replace(ratio, low=low, high=high), 4.0, RATIO)


def largest_rates(results: Results, name: str) -> dict[int, float]:
    """Return, for each seed, the largest rate with a loss within a tenth of the norm's best."""
    rates = results.xs("rate", name)
    by_rate = {rate: results.values[("rate", name, rate)] for rate in rates}
    seeds = by_rate[rates[0]]
    best = {seed: min(losses[seed] for losses in by_rate.values()) for seed in seeds}
    return {
        seed: max(float(rate) for rate in rates if by_rate[rate][seed] <= 1.1 * best[seed])
        for seed in seeds
    }


WORSE = (
    "At very unequal lengths batch norm is {mean} nats worse than layer norm ({low} to {high}).",
    "长度极不相等时，批归一化比层归一化差 {mean} 纳特（{low} 至 {high}）。",
)
GROWS = (
    "From equal to very unequal lengths it falls behind by {mean} nats more ({low} to {high}).",
    "从长度相等到极不相等，它又多落后 {mean} 纳特（{low} 至 {high}）。",
)
RATIO = (
    "The largest learning rate that layer norm bears is {mean} times that of batch norm ({low} to "
    "{high}; claimed are {limit}).",
    "层归一化能承受的最大学习率是批归一化的 {mean} 倍（{low} 至 {high}；论断为 {limit} 倍）。",
)
ENDLESS = (
    "One norm trains with the largest learning rate that was tried, so the ratio is unknown.",
    "有一种归一化能承受所试的最大学习率，因此无从得知二者之比。",
)
CLAIM = Claim(
    title=("Layer norm, batch norm and unequal lengths", "层归一化、批归一化与不等长序列"),
    statement=(
        'Layer norm suits sequences of varying length better than batch norm, and "allows four '
        'times the learning rate" (no such figure is in the paper that it is ascribed to).',
        "层归一化比批归一化更适合变长序列，并且“允许四倍的学习率”（被引用的论文中并无此数字）。",
    ),
    literature=(
        "Shen et al. (2020) find batch norm clearly worse in translation, as statistics vary much "
        "from batch to batch.",
        "Shen 等（2020）发现批归一化在翻译中明显更差，因为统计量在批与批之间波动很大。",
    ),
    literature_finds="supported",
    predicted=("Batch norm is worse; no factor of four.", "批归一化更差；没有四倍之说。"),
    rule=(
        "Decoders of texts with 24 tokens on average. The claim holds if batch "
        "norm is worse at the widest spread of lengths, and by more than at equal lengths, and the "
        "largest rate of layer norm within a tenth of its best loss is at least four times that of "
        "batch norm, known to within a step of the sweep.",
        "解码器，文本平均 24 个词元。若在长度最不等时批归一化更差，且比长度相等时差得更多，"
        "并且层归一化在其最优损失一成之内的最大学习率至少是批归一化的四倍，则论断成立。",
    ),
    panels={
        "spread": Panel(("spread of lengths, of their mean", "长度的离散程度（相对均值）"), LOSS),
        "rate": Panel(("learning rate", "学习率"), LOSS, log_x=True, log_y=True),
    },
    cells=cells,
    measure=measure,
    judge=judge,
    natural=True,
)
