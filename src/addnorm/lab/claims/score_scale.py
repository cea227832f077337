"""Claim 5: scores without 1/√d saturate the softmax and starve its gradient as d grows."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from pydantic import TypeAdapter

from addnorm.inspect.capture import attention_weights
from addnorm.lab.claims.claim import Claim, Finding, Panel, Results, Row, Settings, Size
from addnorm.lab.claims.learning import Course, decoder, entropy, jacobian, learn_text, loss_on_new
from addnorm.lab.claims.tasks import GENERATED, text_of
from addnorm.nn.attention.scores import ScoreConfig

SCORES = ("scaled_dot", "dot", "bilinear", "additive")
WIDTHS = (16, 64, 256, 1024)
TRAINED = {"quick": (16, 64), "full": (16, 64, 256), "night": (16, 64, 256, 512)}
OTHERS = {"quick": (16, 64), "full": (16, 64), "night": (16, 64, 256)}  # without a verdict
STEPS = {"quick": 150, "full": 800, "night": 800}
KEYS, LENGTH = 64, 32


def cells(size: Size, task: str) -> Sequence[Settings]:
    """Return cells for each score: untrained at all widths, and trained at some."""
    start: list[Settings] = [{"score": score} for score in SCORES]
    return start + [
        {"score": score, "d": d, "steps": STEPS[size]}
        for score in SCORES
        for d in (TRAINED if "dot" in score else OTHERS)[size]
    ]


def measure(settings: Settings, seed: int) -> Iterable[Row]:
    """Yield attention's entropy and gradient at random queries, or loss and entropy if trained."""
    if "d" in settings:
        yield from _trained(settings, seed)
        return
    for d in WIDTHS:
        torch.manual_seed(seed)
        config: Any = TypeAdapter(ScoreConfig).validate_python({"kind": settings["score"]})
        queries, keys = torch.randn(2, 8, 1, KEYS, d)
        weights = config.build(1, d)(queries, keys).softmax(-1).detach()
        yield Row("entropy", settings["score"], d, entropy(weights))
        yield Row("gradient", settings["score"], d, jacobian(weights))


def _trained(settings: Settings, seed: int) -> Iterable[Row]:
    d, text = settings["d"], text_of(GENERATED)
    attention = {"kind": "attention", "n_heads": 1, "score": {"kind": settings["score"]}}
    model = decoder(text.vocab, seed, d_model=d, attention=attention, position={"kind": "learned"})
    learn_text(model, GENERATED, LENGTH, Course(settings["steps"], lr=5e-3), seed)
    loss = loss_on_new(model, GENERATED, 64, LENGTH)
    with attention_weights(model) as by_layer, torch.no_grad():
        model(text.draw(torch.Generator().manual_seed(7), 16, LENGTH))
    last = torch.stack([weights[..., -1:, :] for weights in by_layer.values()])
    yield Row("trained", settings["score"], d, loss)
    yield Row("trained entropy", settings["score"], d, entropy(last))


def judge(results: Results) -> Sequence[Finding]:
    """Return the verdict by the claim's rule."""
    plain = results.mean("entropy", "dot", 1024)
    scaled = results.mean("entropy", "scaled_dot", 1024)
    widest = results.xs("trained", "dot")[-1]
    loss = results.difference(("trained", "dot", widest), ("trained", "scaled_dot", widest))
    return [
        Finding.at_most(plain, 0.1, PLAIN),
        Finding.at_least(scaled, 0.8, SCALED),
        Finding.at_least(
            results.ratio(("gradient", "dot", 16), ("gradient", "dot", 1024)),
            2.0,
            STARVED,
        ),
        Finding.at_least(loss, 0.0, WORSE),
    ]


PLAIN = (
    "Without the factor, attention at d = 1,024 has {mean} of its largest entropy ({low} to "
    "{high}); up to {limit} it counts as saturated.",
    "没有缩放因子时，d = 1,024 处注意力的熵为最大值的 {mean}（{low} 至 {high}）；不超过 {limit} "
    "视为饱和。",
)
SCALED = (
    "With it, {mean} ({low} to {high}; the limit is {limit}).",
    "有缩放因子时为 {mean}（{low} 至 {high}；界限为 {limit}）。",
)
STARVED = (
    "Without it, the softmax's derivative at d = 16 is {mean} times that at 1,024 ({low} to "
    "{high}; the limit is {limit}).",
    "没有缩放因子时，softmax 导数在 d = 16 处是 1,024 处的 {mean} 倍（{low} 至 {high}；界限为 "
    "{limit}）。",
)
WORSE = (
    "After equal training at the greatest width, the loss without it is {mean} nats higher "
    "({low} to {high}).",
    "在最大宽度下训练相同步数后，没有缩放因子的损失高 {mean} 纳特（{low} 至 {high}）。",
)


def _panel(english: str, chinese: str, *, log_y: bool = False) -> Panel:
    return Panel(("d", "d"), (english, chinese), log_x=True, log_y=log_y)


CLAIM = Claim(
    title=("Scores and the factor 1/√d", "注意力分数与因子 1/√d"),
    statement=(
        "For large d, dot products grow large, pushing the softmax into regions of extremely small "
        "gradient; therefore they are divided by √d (Vaswani et al. 2017, §3.2.1).",
        "d 较大时点积很大，会把 softmax 推入梯度极小的区域，因此要除以 √d（Vaswani 等 2017，"
        "§3.2.1）。",
    ),
    literature=(
        "The variance of a product of two vectors of unit variance is d; Britz et al. (2017) found "
        "additive scores slightly better than unscaled products.",
        "两个单位方差向量的点积方差为 d；Britz 等（2017）发现加性分数略优于未缩放的点积。",
    ),
    literature_finds="supported",
    predicted=("True at the start; training repairs some.", "初始时成立；训练可弥补一部分。"),
    rule=(
        "Queries and keys of unit variance attend to 64 keys. The claim holds if at d = 1,024 the "
        "entropy is at most a tenth of its largest value without the factor and at least 0.8 with "
        "it, the derivative falls by half from d = 16, and a trained model loses.",
        "单位方差的查询与键，64 个键。若 d = 1,024 时无因子的熵不超过最大值的十分之一、"
        "有因子至少 0.8，"
        "导数自 d = 16 起至少减半，且训练后的模型更差，则论断成立。",
    ),
    panels={
        "entropy": _panel("entropy at the start, of its largest", "初始熵（相对最大值）"),
        "gradient": _panel("norm of the softmax's derivative", "softmax 导数的范数", log_y=True),
        "trained": _panel("loss after training, nats", "训练后的损失（纳特）"),
        "trained entropy": _panel("entropy after training", "训练后的熵（相对最大值）"),
    },
    cells=cells,
    measure=measure,
    judge=judge,
)
