"""Claim 7: recurrence and convolution lose information over distance where attention does not."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from addnorm.lab.claims.claim import Both, Claim, Finding, Panel, Results, Row, Settings, Size
from addnorm.lab.claims.learning import BATCH, Course, accuracy, decoder, learn
from addnorm.lab.claims.tasks import Examples, added, recalled, remembered

ATTENTION = {"kind": "attention", "n_heads": 4}
MIXERS: Mapping[str, Mapping[str, Any]] = {
    "rnn": {"kind": "recurrent", "cell": "rnn"},
    "lstm": {"kind": "recurrent", "cell": "lstm"},
    "gru": {"kind": "recurrent", "cell": "gru"},
    "convolution": {"kind": "convolution", "kernel_size": 3},
    "window": {**ATTENTION, "pattern": {"kind": "window", "size": 8}},
    "attention": ATTENTION,
}
Draw = Callable[[torch.Generator, int, int], Examples]
TASKS: Mapping[str, Draw] = {"copying": remembered, "recall": recalled, "adding": added}
DISTANCES = {"quick": (2, 16, 64), "full": (2, 16, 128, 512), "night": (2, 16, 128, 512)}
ALSO_SHOWN = {"full": (16,), "night": (16, 128, 512)}  # of recall and adding, without a verdict
STEPS = {"quick": 100, "full": 300, "night": 300}
QUICK = ("copying",)
REACH = 2 * (3 - 1) + 1  # of two stacked convolutions of width three


def cells(size: Size, task: str) -> Sequence[Settings]:
    """Return a cell for each mixer, task and distance."""
    tasks = QUICK if size == "quick" else TASKS
    return [
        {"mixer": mixer, "asked": asked, "distance": distance, "steps": STEPS[size]}
        for asked in tasks
        for distance in (DISTANCES if asked == "copying" else ALSO_SHOWN)[size]
        for mixer in MIXERS
    ] + [{"reach": "convolution"}]


def measure(settings: Settings, seed: int) -> Iterable[Row]:
    """Yield the accuracy after training at a distance, or how many tokens affect an output."""
    if "reach" in settings:
        yield Row("reach", "convolution", 2, float(reach(seed)))
        return
    draw, distance = TASKS[settings["asked"]], settings["distance"]
    fields = {"attention": dict(MIXERS[settings["mixer"]]), "max_len": distance + 16}
    model = decoder(24, seed, position={"kind": "sinusoidal"}, **fields)
    learn(model, lambda g: draw(g, BATCH, distance), Course(settings["steps"]), seed)
    asked = draw(torch.Generator().manual_seed(7), 256, distance)
    yield Row(settings["asked"], settings["mixer"], distance, accuracy(model, asked))


def reach(seed: int) -> int:
    """Return the number of tokens that affect the last output of two convolutions."""
    model = decoder(24, seed, attention=dict(MIXERS["convolution"]), position={"kind": "none"})
    vectors: list[torch.Tensor] = []
    hook = model.embed.register_forward_hook(lambda _, __, out: vectors.append(out) or None)
    output = model(torch.zeros(1, 16, dtype=torch.long))
    hook.remove()
    [gradient] = torch.autograd.grad(output[0, -1].square().sum(), vectors)
    return int(gradient[0].abs().sum(-1).ne(0).sum())


def judge(results: Results) -> Sequence[Finding]:
    """Return the verdict by the claim's rule, for copying at the greatest distance."""
    near, *_, far = results.xs("copying")
    names = results.series("copying")
    close = {name: results.mean("copying", name, near) for name in names}
    right = {name: results.mean("copying", name, far) for name in names}
    interval = results.mean("reach", "convolution", 2)
    exact = interval.low == interval.high == REACH
    texts: Both = (REACHED[0].format(interval.mean), REACHED[1].format(interval.mean))
    others = [name for name in names if name != "attention"]
    return [
        *(Finding.at_least(close[name], 90, RIGHT, name=name, far=near) for name in names),
        Finding.at_least(right["attention"], 95, RIGHT, name="attention", far=far),
        *(Finding.at_most(right[name], 50, RIGHT, name=name, far=far) for name in others),
        Finding("supported" if exact else "refuted", texts),
    ]


RIGHT = (
    "Copying over {far} tokens, {name} is right in {mean} % ({low} to {high}; the limit is "
    "{limit} %, chance 12.5 %).",
    "跨 {far} 个词元复制时，{name} 的正确率为 {mean} %（{low} 至 {high}；界限 {limit} %，"
    "随机 12.5 %）。",
)
REACHED = (
    f"Two stacked convolutions of width 3 reach {{:g}} tokens; L (k − 1) + 1 = {REACH}.",
    f"两层宽度 3 的卷积可及 {{:g}} 个词元；L (k − 1) + 1 = {REACH}。",
)


def _panel(english: str, chinese: str) -> Panel:
    y = (f"{english}: right answers, %", f"{chinese}：正确率（%）")
    return Panel(("distance, tokens", "距离（词元）"), y, log_x=True)


CLAIM = Claim(
    title=("Information over distance", "信息与距离"),
    statement=(
        "RNNs forget, LSTMs and GRUs less so, convolutions see L (k − 1) + 1 tokens; attention "
        "reaches every token in one step.",
        "RNN 会遗忘，LSTM 与 GRU 稍好，卷积只看到 L (k − 1) + 1 个词元；注意力一步可及任何词元。",
    ),
    literature=(
        "Bai et al. (2018) find convolutions with enough reach better than LSTMs, slow learners.",
        "Bai 等（2018）发现感受野足够的卷积优于 LSTM，后者也能学会，只是较慢。",
    ),
    literature_finds="undecided",
    predicted=(
        "At distance all but attention fail; LSTM and GRU within these steps, not in principle.",
        "远距离时除注意力外都失败；LSTM 与 GRU 只是在这些步数内，并非原则上不能。",
    ),
    rule=(
        "Two layers of each, equal steps. The claim holds if, copying over two tokens, each is "
        "right in at least 90 %, and over the greatest distance attention in at least 95 % and "
        "every other in at most 50 %, and the gradient of stacked convolutions reaches exactly "
        "L (k − 1) + 1 tokens. Recall and addition are shown as well.",
        "各两层，步数相同。若跨两个词元复制时各者至少 90 % 正确，在最远距离注意力至少 95 %、"
        "其余至多 50 %，且堆叠卷积的梯度恰好可及 L (k − 1) + 1 个词元，则论断成立。"
        "回忆与加法只作展示。",
    ),
    panels={
        "copying": _panel("copying", "复制"),
        "recall": _panel("associative recall", "联想回忆"),
        "adding": _panel("adding problem", "加法问题"),
    },
    cells=cells,
    measure=measure,
    judge=judge,
)
