"""Claim 2: without positions, word order is lost."""

from collections.abc import Iterable, Sequence

import torch

from addnorm.lab.claims.claim import Claim, Finding, Panel, Results, Row, Settings, Size
from addnorm.lab.claims.learning import Course, accuracy, decoder, encoder, learn
from addnorm.lab.claims.tasks import in_order

POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "t5", "transformer_xl", "kerple")
STEPS = {"quick": 200, "full": 600, "night": 2000}
LENGTH = 12
WITHOUT = {"encoder": "encoder without", "decoder": "decoder without"}


def cells(size: Size, task: str) -> Sequence[Settings]:
    """Return an encoder's cell for each kind of positions, and both models' cells without any."""
    kinds = [("encoder", "none"), ("decoder", "none"), *(("encoder", kind) for kind in POSITIONS)]
    return [{"model": model, "position": kind, "steps": STEPS[size]} for model, kind in kinds]


def measure(settings: Settings, seed: int) -> Iterable[Row]:
    """Train to tell which of two tokens came first; yield the share of right answers."""
    causal, kind = settings["model"] == "decoder", settings["position"]
    model = (decoder if causal else encoder)(13, seed, position={"kind": kind})
    learn(
        model,
        lambda generator: in_order(generator, 64, LENGTH, causal=causal),
        Course(settings["steps"], lr=5e-3),
        seed,
    )
    generator = torch.Generator().manual_seed(7)
    asked = in_order(generator, 2000, LENGTH, causal=causal)
    name = WITHOUT[settings["model"]] if kind == "none" else kind
    yield Row("accuracy", "accuracy", name, accuracy(model, asked))


def judge(results: Results) -> Sequence[Finding]:
    """Return the verdict by the claim's rule."""
    lost = results.mean("accuracy", "accuracy", WITHOUT["encoder"])
    seen = results.mean("accuracy", "accuracy", WITHOUT["decoder"])
    schemes = [
        Finding.at_least(results.mean("accuracy", "accuracy", kind), 95, WITH, kind=kind)
        for kind in POSITIONS
    ]
    return [Finding.at_most(lost, 55, ENCODER), Finding.at_most(seen, 55, DECODER), *schemes]


ENCODER = (
    "An encoder without positions answers {mean} % right ({low} to {high}); chance is 50 %, and "
    "order counts as lost up to {limit} %.",
    "没有位置的编码器答对 {mean} %（{low} 至 {high}）；随机为 50 %，不超过 {limit} % "
    "视为丢失词序。",
)
DECODER = (
    "A causal decoder without positions answers {mean} % right ({low} to {high}); order counts as "
    "lost up to {limit} %.",
    "没有位置的因果解码器答对 {mean} %（{low} 至 {high}）；不超过 {limit} % 视为丢失词序。",
)
WITH = (
    "With {kind} positions it answers {mean} % right ({low} to {high}; the limit is {limit}).",
    "使用 {kind} 位置时答对 {mean} %（{low} 至 {high}；界限为 {limit}）。",
)
CLAIM = Claim(
    title=("Word order without positions", "没有位置时的词序"),
    statement=(
        'Attention treats its input as a set, so that without positions "I love you" and "you '
        'love I" are the same to a Transformer.',
        "注意力把输入当作集合，因此没有位置时，“我爱你”与“你爱我”对 Transformer 毫无区别。",
    ),
    literature=(
        "It follows from the equations for encoders (Vaswani et al. 2017, §3.5). For causal "
        "decoders it does not: Haviv et al. (2022) and Kazemnejad et al. (2023) show that the "
        "mask lets them count.",
        "对编码器，这由公式可得（Vaswani 等 2017，§3.5）；对因果解码器则不然："
        "Haviv 等（2022）与 Kazemnejad 等（2023）表明因果掩码使其能够计数。",
    ),
    literature_finds="refuted",
    predicted=("True of encoders, false of causal decoders.", "对编码器成立，对因果解码器不成立。"),
    rule=(
        "Two marks stand among ten tokens of noise; the answer is which came first. The claim "
        "holds if encoder and decoder without positions stay at 55 % or less, and every scheme "
        "reaches 95 %.",
        "十个噪声词元之中有两个标记，回答哪一个在前。若没有位置的编码器和解码器都不超过 55 %，"
        "而每种方案都达到 95 %，则论断成立。",
    ),
    panels={"accuracy": Panel(("positions", "位置"), ("right answers, %", "正确率（%）"))},
    cells=cells,
    measure=measure,
    judge=judge,
)
