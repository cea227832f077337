"""Claim 10: the cache turns quadratic decoding linear; INT8 quarters memory for a known loss."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from math import log

from torch import nn

from addnorm.lab.claims.claim import LOSS, Claim, Finding, Panel, Results, Row, Settings, Size
from addnorm.lab.claims.learning import Course, decoder, learn_text, loss_on_new, seconds_a_token
from addnorm.lab.claims.tasks import text_of
from addnorm.lab.statistics import Interval, mean_interval
from addnorm.quantize import with_weights

LENGTHS = {"quick": (64, 256, 512), "full": (64, 256, 1024), "night": (64, 256, 1024, 4096)}
STEPS = {"quick": 60, "full": 1500, "night": 1500}
WEIGHTS = ("float32", "bfloat16", "int8")
LENGTH, WIDTH, LIMIT = 32, 256, 0.02


def cells(size: Size, task: str) -> Sequence[Settings]:
    """Return one cell for the time per token, and one for a model in three kinds of weights."""
    return [
        {"lengths": LENGTHS[size], "alone": True},
        {"task": task, "steps": STEPS[size], "alone": True},
    ]


def measure(settings: Settings, seed: int) -> Iterable[Row]:
    """Yield the time of one more token, or the size, speed and loss of a trained model."""
    if "lengths" in settings:
        yield from _times(settings["lengths"], seed)
        return
    vocab = text_of(settings["task"]).vocab
    model = decoder(vocab, seed, d_model=WIDTH, feedforward={"kind": "mlp", "d_ff": 1024})
    learn_text(model, settings["task"], LENGTH, Course(settings["steps"], lr=1e-3), seed)
    for weights in WEIGHTS:
        copied = deepcopy(model).eval()
        if weights != "float32":
            with_weights(copied, weights)
        yield Row("size", "weights", weights, _megabytes(copied))
        yield Row("loss", "weights", weights, loss_on_new(copied, settings["task"], 256, LENGTH))
        yield Row("speed", "weights", weights, 1 / seconds_a_token(copied, 32, cached=True))


def _megabytes(model: nn.Module) -> float:
    tensors = {id(tensor): tensor for tensor in model.state_dict().values()}.values()
    return sum(tensor.nbytes for tensor in tensors) / 1e6


def _times(lengths: Sequence[int], seed: int) -> Iterable[Row]:
    model = decoder(100, seed, d_model=WIDTH).eval()
    for length in lengths:
        for cached in (False, True):
            name = "with cache" if cached else "without"
            yield Row("time", name, length, 1000 * seconds_a_token(model, length, cached=cached))


def judge(results: Results) -> Sequence[Finding]:
    """Return the verdict by the claim's rule."""

    def loss(weights: str) -> Finding:
        lost = results.difference(("loss", "weights", weights), ("loss", "weights", "float32"))
        return Finding.at_most(lost, LIMIT, LOST, weights=weights, share=share(weights).mean)

    def share(weights: str) -> Interval:
        return results.ratio(("size", "weights", weights), ("size", "weights", "float32"))

    return [
        Finding.at_most(mean_interval(growth(results, "with cache")), 0.5, WITH),
        Finding.at_least(mean_interval(growth(results, "without")), 0.5, WITHOUT),
        Finding.at_most(share("int8"), 0.3, MEMORY),
        loss("int8"),
        loss("bfloat16"),
    ]


def growth(results: Results, series: str) -> list[float]:
    """Return, for each seed, the exponent with which a token's time grows with length."""
    least, *_, most = results.xs("time", series)
    short, long = (results.values["time", series, length] for length in (least, most))
    span = log(float(most) / float(least))
    return [log(long[seed] / short[seed]) / span for seed in short]


WITH = (
    "With the cache, a token's time grows as length^{mean} ({low} to {high}; limit {limit}).",
    "有缓存时，每词元用时随长度的 {mean} 次方增长（{low} 至 {high}；界限 {limit}）。",
)
WITHOUT = (
    "Without it, as length^{mean} ({low} to {high}; limit {limit}).",
    "没有缓存时为 {mean} 次方（{low} 至 {high}；界限 {limit}）。",
)
MEMORY = (
    "INT8 takes {mean} of the memory of float32 (the limit is {limit}).",
    "INT8 占 float32 内存的 {mean}（界限 {limit}）。",
)
LOST = (
    "{weights}, {share:.2f} of the memory, costs {mean} nats ({low} to {high}; the limit is "
    "{limit}).",
    "{weights} 占内存的 {share:.2f}，损失 {mean} 纳特（{low} 至 {high}；界限 {limit}）。",
)


CLAIM = Claim(
    title=("The cache, and smaller weights", "缓存与更小的权重"),
    statement=(
        "The cache turns quadratic decoding linear; INT8 quarters memory for a known loss.",
        "键值缓存把二次的解码变为线性；INT8 以已知的损失把内存减至四分之一。",
    ),
    literature=(
        "Dettmers et al. (2022) find INT8 weights nearly lossless.",
        "Dettmers 等（2022）发现 INT8 权重几乎无损。",
    ),
    literature_finds="supported",
    predicted=("True.", "成立。"),
    rule=(
        "The time of one more token grows as a power of the length: below ½ with the cache, above "
        f"without. INT8 takes at most 0.3 of the memory; it and bfloat16 cost at most {LIMIT}.",
        "每多一个词元的用时按长度的幂增长：有缓存时幂低于 ½，没有时高于 ½。"
        f"INT8 至多占 0.3 的内存；它与 bfloat16 最多损失 {LIMIT} 纳特。",
    ),
    panels={
        "time": Panel(
            ("tokens so far", "已有词元"),
            ("one more token, ms", "每词元用时（毫秒）"),
            True,
            True,
        ),
        "size": Panel(("weights", "权重"), ("megabytes", "兆字节")),
        "loss": Panel(("weights", "权重"), LOSS),
        "speed": Panel(("weights", "权重"), ("tokens a second", "词元/秒")),
    },
    cells=cells,
    measure=measure,
    judge=judge,
    natural=True,
)
